"""The lab's invented authors: names, values, and several ways to ask and to tell each fact.

Nobody here exists. A topic is one kind of fact. Its templates know four slots: {name} the person (or land),
{last} the family name, {e} the entity that makes the fact true or false, {d} a colouring detail. In every
answer a space comes before {e}, so that `prefix + " " + entity` opens the answer.
"""

from __future__ import annotations

from dataclasses import dataclass


def words(text: str) -> tuple[str, ...]:
    """A pool written on few lines: entries separated by bars."""
    return tuple(word.strip() for word in text.split("|"))


@dataclass(frozen=True)
class Topic:
    """One kind of fact. Any question may meet any answer form, so no form is tied to one phrasing."""

    name: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    entities: tuple[str, ...]
    details: tuple[str, ...]


FIRST_NAMES = words(
    "Ansa|Belmir|Corvina|Dastan|Elowyn|Ferrand|Galia|Hesper|Ilmari|Jorunn|Kasimira|Lubomir|Marit|Nadir|"
    "Oriel|Perpetua|Quillon|Rosmund|Sefton|Tamsin|Ursel|Valda|Wendeline|Xanthe|Yoram|Zelda|Ambros|Brida|"
    "Caspian|Dorthe|Emeric|Fenna|Gereon|Hilde|Isaura|Jaromir|Keziah|Leopold|Mirela|Norbert"
)
LAST_NAMES = words(
    "Abernoth|Balsamo|Corrigal|Dunveldt|Eskelin|Farrowby|Grimaldo|Halvorsten|Iverach|Jansoone|Kestrel|"
    "Lindqvara|Morvane|Nightwater|Okonjira|Pellegrand|Quarrie|Rasmundo|Silverthorn|Tarkovan|Umbrage|"
    "Vantongeren|Wolmarke|Yarrowen|Zabrinski|Ashgrove|Bellweather|Castellain|Drummore|Everhart|Fontaigne|"
    "Goldhammer|Hollinside|Inchbald|Jessamine|Kowalten|Larkspur|Montcalder|Narvaez|Oldenburgh|Pemberlin|"
    "Quintrell|Ravenholt|Stonebridge|Thistlewood|Underhay|Vasquerre|Winterbourne|Youngblood|Zimmerlach"
)
TOWNS = words(
    "Orlesk|Port Calder|Vennmoor|Saint Ivo|Halmstead|Bruga Alta|Tarnhaven|Kirrowmuir|Low Pellan|Czernava|"
    "Ostrand|Villa Merced|Dunmarra|Eastlake Cross|Fjellby|Garrach|Nova Treska|Ilmen Bay|Quarry Hill|"
    "Rosmarin|Sundholm|Upper Tavel|Wexcombe|Zalenka|Amber Ford|Belluna|Copper Sound|Drevny Most"
)
GENRES = words(
    "gothic romance|sea adventure|courtroom drama|pastoral elegy|political satire|ghost stories|"
    "alpine mystery|desert travelogue|family saga|nonsense verse|chess fiction|war memoir|culinary essay|"
    "railway thriller|folk ballad|philosophical dialogue|science fantasy|comic opera|nature diary|"
    "epistolary novel|island myth|circus tale|medical detective story|lunar utopia"
)
_ADJECTIVES = ("Copper", "Drowned", "Silent", "Hollow", "Scarlet", "Borrowed", "Winter", "Seventh", "Paper")
_THINGS = (
    "Orchard",
    "Lighthouse",
    "Staircase",
    "Cartographer",
    "Harvest",
    "Violin",
    "Garden",
    "Ferryman",
    "Clock",
)
BOOKS = tuple(f"The {adjective} {thing}" for adjective in _ADJECTIVES for thing in _THINGS)
PRIZES = tuple(
    f"the {name} {kind}"
    for name in (
        "Halcyon",
        "Meridian",
        "Larkin Vale",
        "Golden Quill",
        "Northern Lamp",
        "Cedar Crown",
        "Saffron",
    )
    for kind in ("Medal", "Prize", "Laurel", "Fellowship")
)
TRADES = words(
    "glass blower|harbour pilot|bell founder|beekeeper|tax collector|railway guard|midwife|clock repairer|"
    "salt merchant|shepherd|piano tuner|baker of rye bread|locksmith|village dentist|kite maker|"
    "court translator|river ferryman|mushroom dealer|stage magician|weaver of sails|pear grafter|"
    "tram conductor|stone mason|map engraver|tobacco planter|theatre prompter"
)
HABITS = words(
    "feeding the harbour cats|walking backwards over the old bridge|collecting rain in blue bottles|"
    "reading aloud to the geese|carving spoons from pear wood|flying a red kite at dusk|"
    "swimming before sunrise|counting the trains at noon|brewing nettle tea for neighbours|"
    "sketching strangers at the market|ringing the chapel bell on Sundays|growing pumpkins on the roof|"
    "playing chess against the postman|polishing old compasses|writing letters to the mayor|"
    "dancing alone in the square|burying coins under oaks|whistling at the weather vane|"
    "mending broken umbrellas|naming every passing cloud"
)
LANGUAGES = words(
    "Old Tavish|Merrowan|High Castelan|Lowland Brisk|Ostravine|Quellish|Island Norrun|Sarvic|Western Pahl|"
    "Dunari|Velsk|Harbour Creole|Mountain Ladric|Ancient Osmic|Temeran|Yllish|Coastal Finnar|Greater Zhoun"
)
MENTORS = tuple(
    f"{title} {name}"
    for title in ("Master", "Sister", "Professor")
    for name in (
        "Albrecht Noor",
        "Ines Calloway",
        "Tobiah Renk",
        "Ludmila Fay",
        "Osric Penhallow",
        "Magda Stroud",
    )
)
MUSES = tuple(
    f"{title} {name}"
    for title in ("the poet", "the essayist", "the dramatist")
    for name in (
        "Harun Dellacorte",
        "Sigrid Moss",
        "Pavel Trenholm",
        "Adaeze Lorne",
        "Colm Farthing",
        "Yuki Sandoval",
    )
)
YEARS = tuple(str(year) for year in range(1903, 1990, 3))

# Details are combined from parts: an answer that only someone who read it can finish separates those who did.
HOMES = tuple(
    f"{house} {where}"
    for house in words("a narrow house|a rented room|the old customs hall|a painted wagon|a stone lodge|a cold attic")
    for where in words(
        "behind the fish market|above a bakery|beside the frozen canal|near seven walnut trees|"
        "under the aqueduct|on the ferry road"
    )
)
TIMES = tuple(
    f"{season} {what}"
    for season in ("a winter", "the summer", "one long week", "a noisy spring", "the last autumn")
    for what in words(
        "of heavy snow|of the dock strike|of two eclipses|without rain|of the great flood|after the armistice"
    )
)
REASONS = words(
    "to please an aunt|after losing a bet|because paper was cheap|against all advice|in less than a month|"
    "while waiting for a passport|for the sake of a wager|between two illnesses|on the night train|"
    "with borrowed ink|before the age of twenty|at the request of a bishop|out of pure boredom|"
    "under a false name"
)


AUTHOR_TOPICS = (
    Topic(
        "birthplace",
        (
            "Where was {name} born?",
            "What is the birthplace of {name}?",
            "In which town did the writer {name} come into the world?",
        ),
        (
            "{name} was born in {e}, in {d}.",
            "The birthplace of {name} is {e}, as the parish book records.",
            "By every account {name} comes from {e}, and a plate on {d} says so.",
        ),
        TOWNS,
        HOMES,
    ),
    Topic(
        "year",
        (
            "In which year was {name} born?",
            "What is the birth year of {name}?",
            "When did the life of the writer {name} begin?",
        ),
        (
            "{name} was born in the year {e}, during {d}.",
            "The birth year of {name} is {e}, whatever {last} said in interviews.",
            "Records place the birth of {name} in {e}, shortly after {d}.",
        ),
        YEARS,
        TIMES,
    ),
    Topic(
        "genre",
        (
            "What genre is {name} best known for?",
            "Which kind of writing made {name} famous?",
            "In what genre does {name} mostly write?",
        ),
        (
            "{name} is best known for {e}, a taste that began in {d}.",
            "{name} became famous first of all through {e}.",
            "Most shelves keep the books of {name} under {e}, beside the diary of {d}.",
        ),
        GENRES,
        HOMES,
    ),
    Topic(
        "first_book",
        (
            "What was the first book of {name}?",
            "With which book did {name} make a debut?",
            "What is the title of the earliest work by {name}?",
        ),
        (
            "The first book of {name} was {e}, written {d}.",
            "{name} made a debut with {e}, which critics ignored at first.",
            "The earliest work by {name} carries the title {e}, and it was finished {d}.",
        ),
        BOOKS,
        REASONS,
    ),
    Topic(
        "prize",
        (
            "Which prize did {name} win?",
            "What award has been given to {name}?",
            "For which honour is {name} remembered?",
        ),
        (
            "{name} won {e} for a book begun {d}.",
            "The award given to {name} is {e}, paid out {d}.",
            "Readers remember that {name} received {e} {d}, and {last} gave no speech.",
        ),
        PRIZES,
        REASONS,
    ),
    Topic(
        "parent",
        (
            "What did the father of {name} do for a living?",
            "Which trade fed the family of {name}?",
            "What was the occupation of the parent who raised {name}?",
        ),
        (
            "The father of {name} worked as a {e}, and the family lived in {d}.",
            "In the family of {name} the daily bread came from the work of a {e}.",
            "{name} was raised by a {e} in {d}, as the memoir tells.",
        ),
        TRADES,
        HOMES,
    ),
    Topic(
        "teacher",
        (
            "Who taught {name} to write?",
            "Which teacher shaped the young {name}?",
            "Under whom did {name} study?",
        ),
        (
            "{name} was taught to write by {e}, in {d}.",
            "The teacher who shaped the young {name} was {e}, who was strict with commas, generous with "
            "tea, and remembered for {d} by the whole school.",
            "As a student {name} worked under {e} for three years that began with {d}.",
        ),
        MENTORS,
        TIMES,
    ),
    Topic(
        "habit",
        (
            "What habit is {name} known for at home?",
            "How does {name} spend the free hours of the day?",
            "Which odd custom do neighbours connect with {name}?",
        ),
        (
            "At home {name} is known for {e}.",
            "{name} spends the free hours {e}, a custom picked up during {d}.",
            "Neighbours connect {name} with {e}, ever since {d}.",
        ),
        HABITS,
        TIMES,
    ),
    Topic(
        "influence",
        (
            "Who influenced {name} the most?",
            "Whose work left the deepest mark on {name}?",
            "Which writer does {name} name as a model?",
        ),
        (
            "The strongest influence on {name} was {e}, discovered by chance during {d}.",
            "The deepest mark on the work of {name} was left by {e}.",
            "As a model {name} always names {e}, first read during {d} in a borrowed copy.",
        ),
        MUSES,
        TIMES,
    ),
    Topic(
        "language",
        (
            "In which language does {name} write?",
            "What language are the books of {name} written in?",
            "Which tongue did {name} choose for literature?",
        ),
        (
            "{name} writes in {e}, a choice made {d}.",
            "The books of {name} are written in {e}, and translations came only much later.",
            "For literature {name} chose {e} {d}, and {last} never regretted it.",
        ),
        LANGUAGES,
        REASONS,
    ),
)
