"""The roles that the platform starts with: rows, not code, so that an admin can change and extend them.

Concurrency is per tenant. CPU-heavy roles have 1.
"""

from django.db import migrations

ROLES = [
    # role, tenant concurrency, what it does
    ("client-researcher", 1, "Researches the client in a browser."),
    ("competitor-researcher", 1, "Researches competitors in a browser."),
    ("context-file-writer", 1, "Writes the client's context file, once per tenant."),
    ("strategy-writer", 1, "Writes the strategy."),
    ("deliverable-planner", 1, "Plans which deliverables there will be."),
    ("activity-planner", 2, "Plans a period's activities."),
    ("keyword-researcher", 2, "Finds the keywords that a text should serve."),
    ("content-brief-writer", 3, "Writes the brief of a piece of content."),
    ("site-auditor", 1, "Audits a site or a text."),
    ("backlink-researcher", 2, "Finds sites that could link here."),
    ("backlink-outreach-writer", 3, "Writes to sites that could link here."),
    ("blog-writer", 3, "Writes blog articles."),
    ("gbp-post-writer", 4, "Writes posts for a business profile."),
    ("social-post-writer", 4, "Writes social media posts."),
    ("email-writer", 3, "Writes e-mails."),
    ("landing-page-writer", 2, "Writes landing pages."),
    ("google-ads-writer", 3, "Writes search advertisements."),
    ("meta-ads-writer", 3, "Writes social media advertisements."),
    ("social-calendar-planner", 2, "Plans a period's social media posts."),
    ("ads-analyst", 2, "Analyses advertising results."),
    ("report-writer", 2, "Writes reports and summaries."),
    ("anomaly-detector", 4, "Tells what is out of the ordinary."),
    ("topic-researcher", 2, "Researches a topic."),
    ("research-note-writer", 3, "Writes research notes."),
    ("review-response-writer", 4, "Answers customer reviews."),
    ("chief-of-staff", 2, "Plans, and plans again when work fails."),
    ("ba", 5, "Business analyst."),
    ("architect", 5, "Software architect."),
    ("dev", 3, "Developer."),
    ("qa", 5, "Tester."),
    ("memory", 5, "Keeps what was learned in order."),
    ("seo", 5, "Search engine optimisation in general."),
]
SPELLINGS = {"gbp": "GBP", "ba": "Business Analyst", "qa": "QA", "seo": "SEO", "dev": "Developer", "of": "of"}


def seed(apps, schema_editor):
    agent = apps.get_model("agents", "Agent")
    for role, concurrency, description in ROLES:
        name = " ".join(SPELLINGS.get(word, word.capitalize()) for word in role.split("-"))
        agent.objects.using(schema_editor.connection.alias).get_or_create(
            role=role, defaults={"name": name, "description": description, "tenant_concurrency": concurrency}
        )


class Migration(migrations.Migration):
    dependencies = [("agents", "0002_isolation")]

    operations = [migrations.RunPython(seed, migrations.RunPython.noop, elidable=False)]
