"""An empty Django project with Celery in one file, for comparison: the usual applications, their admin, two views, no task, no database.

It imports nothing of this project.
"""

import os

import django
from celery import Celery
from django.conf import settings

if not settings.configured:
    settings.configure(
        SECRET_KEY=os.urandom(20).hex(),
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="empty_project",
        DATABASES={},
        USE_TZ=True,
        INSTALLED_APPS=[
            "django.contrib.admin",
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "django.contrib.messages",
            "django.contrib.staticfiles",
            "rest_framework",
            "django_celery_beat",
            "django_celery_results",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
    )
    django.setup()

from django.contrib import admin
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from rest_framework.decorators import api_view
from rest_framework.response import Response

app = Celery("empty_project", broker=os.environ["REDIS_URL"])
app.conf.update(task_default_queue="empty_project", broker_connection_retry_on_startup=True)


def readyz(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ready")


@api_view(["GET"])
def anything(request: HttpRequest) -> Response:
    return Response({})


urlpatterns = [path("readyz", readyz), path("anything", anything), path("admin/", admin.site.urls)]
application = get_wsgi_application()
