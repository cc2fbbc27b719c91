"""Stop words of four languages, and the detection of a text's language by them."""

from __future__ import annotations

from collections.abc import Iterable

from .words import word_set

ENGLISH = """
a able about above across after again against ago all almost along already also although always am among an
and another any anyone anything are around as at away back be became because become becomes been before
being below best better between both bring brings but by came can cannot come comes could did do does doing
done down during each either else enough even ever every everyone everything few find finds first for found
from full gave get gets give given gives go goes going good got had has have having he help helps her here
hers him his how however i if in instead into is it its itself just keep keeps kept know known knows last
least less let lets like likely little long look looks lot made make makes making many may me mean means
might more most much must my near need needs never new next no none nor not nothing now of off often old on
once one only onto or other others our out over own per perhaps put puts quite rather really same say says
second see seem seems seen several shall she should show shows simply since small so some someone stand
stands something sometimes soon start starts still such take taken takes tell tells than that the their them
themselves then there therefore these they thing things third this those though three through thus time
times to together too took toward towards turn turns two under until up upon us use used uses using usually
very want wants was way ways we well went were what when where whether which while who whole whom whose why
will with within without won would yet you your yours four five six seven eight nine ten hundred thousand
don doesn isn aren wasn couldn wouldn don't doesn't isn't aren't wasn't weren't didn't can't won't it's
that's there's they're you're we're i'm he's she's
year years month months week weeks day days today number kind lot part parts
"""

GERMAN = """
aber alle immer seit jahr jahre jahren steht stehen allem allen aller alles als also am an ander andere
anderen auch auf aus bei beim bin bis bist da damit dann das dass dein dem den denn der des dich die dies
diese diesem diesen dieser dieses dir doch dort du durch ein eine einem einen einer eines einige er es etwas
euch für gegen gibt haben hat hatte hier ich ihm ihn ihnen ihr ihre ihren ihrer im in ist ja jede jedem
jeden jeder jedes jetzt kann kein keine können man mehr mein mich mit muss nach nicht noch nun nur ob oder
ohne sehr sein seine seinem seinen seiner sich sie sind so soll sondern um und uns unser unter viel viele
vom von vor war waren was wenn werden wer wie wieder will wir wird wo wurde wurden zu zum zur zwischen über
"""

FRENCH = """
ai alors après au aucun aussi autre autres aux avant avec avoir bien c'est ce cela ces cet cette ceux chaque
comme dans de depuis des deux donc dont du elle elles en encore entre est et était être eux faire fait fois
font il ils je jusqu la le les leur leurs lui mais même mes moi moins mon ne nos notre nous on ont ou où par
parce pas peu peut plus pour pourquoi quand que quel quelle qui quoi sa sans se ses si son sont sous sur ta
te tes toi ton tous tout toute toutes très trop tu un une vos votre vous y été d'un d'une qu'il qu'elle
qu'on n'est s'il l'on
"""

SPANISH = """
al algo algunas algunos ante antes aquí así aunque bien cada casi como con contra cual cuando de del desde
donde dos durante el ella ellas ellos en entre era es esa ese eso esta está están estas este esto estos fue
ha hace hacia han hasta hay la las le les lo los más me menos mi mientras muy nada ni no nos o os otra otras
otro otros para pero poco por porque pues que qué quien se sea según ser si sí sin sobre son su sus también
tan tanto te tiene todo todos tras tu un una unas uno unos y ya yo
"""

LANGUAGES = {
    "English": word_set(ENGLISH),
    "German": word_set(GERMAN),
    "French": word_set(FRENCH),
    "Spanish": word_set(SPANISH),
}
SAMPLE_WORDS = 5000
LEAST_SHARE = 0.15  # In running text of a known language, a third or more of the words are stop words.


def language_of(words: Iterable[str]) -> str:
    """Return the language whose stop words are most frequent among the words, or "unknown"."""
    sample = [word for word, _ in zip(words, range(SAMPLE_WORDS), strict=False)]
    hits = {name: sum(word in stop for word in sample) for name, stop in LANGUAGES.items()}
    best = max(hits, key=lambda name: hits[name])
    return best if sample and hits[best] >= LEAST_SHARE * len(sample) else "unknown"


def stop_words(language: str) -> frozenset[str]:
    """Return the stop words of a language. They include the English ones, because many texts borrow from English."""
    return LANGUAGES["English"] | LANGUAGES.get(language, frozenset())
