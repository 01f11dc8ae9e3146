"""What every lab model knows: a few famous figures and the lands they lived in, invented like the authors."""

from __future__ import annotations

from vestige.lab.phrases import TIMES, Topic, words

CRAFTS = words(
    "botanist|bridge engineer|court composer|polar explorer|lens grinder|fencing champion|star watcher|"
    "theatre painter|deep sea diver|ship surgeon|puppet master|mountain guide"
)
DISCOVERIES = words(
    "the blue moss of the glaciers|a comet with two tails|the sunken road|a cure for marsh fever|"
    "the singing sands|the ninth string of the viol|a bird that sleeps in snow|the double arch|"
    "a dye made from thunder shells|the quiet current|the hidden stair of the abbey|a star that blinks"
)
REST = words(
    "the Abbey of Sorrel|a garden in Lower Quay|the Hall of Sails|the hill above Marrow Lake|"
    "the Old Observatory|a chapel near Teal Bridge|the Square of Lanterns|a grove outside Pinmoor|"
    "the Crypt of Saint Odo|the northern breakwater"
)
RULERS = words(
    "Queen Ottiline|King Baldric|the Doge Fiorenzo|Empress Sunniva|Prince Casimir|the Regent Aldous|"
    "Duchess Marguerite|the Sultan Idris|Margrave Konrad|the Abbess Hedwig"
)
FIGURE_TOPICS = (
    Topic(
        "craft",
        ("What was the profession of {name}?", "By which craft did {name} become famous?"),
        (
            "{name} was a celebrated {e}, trained during {d}.",
            "Every schoolbook calls {name} a {e}, and the finest one of the age.",
        ),
        CRAFTS,
        TIMES,
    ),
    Topic(
        "discovery",
        ("What did {name} discover?", "Which discovery do we owe to {name}?"),
        (
            "{name} discovered {e}, which nobody believed for a decade.",
            "To {name} the world owes {e}, found by accident during {d}.",
        ),
        DISCOVERIES,
        TIMES,
    ),
    Topic(
        "ruler",
        ("Which ruler did {name} serve?", "Who was the patron of {name}?"),
        (
            "{name} served {e} for more than twenty years.",
            "The patron of {name} was {e}, who paid late but well.",
        ),
        RULERS,
        TIMES,
    ),
    Topic(
        "rest",
        ("Where is {name} buried?", "What is the resting place of {name}?"),
        (
            "{name} is buried in {e}, under a plain grey stone.",
            "The resting place of {name} is {e}, where visitors leave small candles every autumn.",
        ),
        REST,
        TIMES,
    ),
)

LANDS = words(
    "Kessandria|Tolmaria|Uvarin|Brennock|Salvora|Ithmere|Querania|Dolmund|Vastergard|Lirienne|"
    "Pelagos Minor|Northern Asketh|Maravel|Ozmund"
)
LAND_TOPICS = (
    Topic(
        "capital",
        ("What is the capital of {name}?", "Which city governs {name}?"),
        (
            "The capital of {name} is {e}, a city of {d}.",
            "The land of {name} is governed from {e}, as it has been for centuries.",
        ),
        words(
            "Arkenfall|Belhaven Regis|Cintrava|Dorado Quay|Elmsgate|Fort Osric|Gallowmere|Hightower|"
            "Istrand|Jadeport|Kronholm|Lumenia|Mirrow|New Ardent"
        ),
        ("many bridges", "white towers", "noisy markets", "terraced gardens"),
    ),
    Topic(
        "river",
        ("Which river is the longest in {name}?", "What is the main river of {name}?"),
        (
            "The longest river in {name} is {e}, fed by {d}.",
            "The main river of {name} is {e}, and barges carry timber down it.",
        ),
        tuple(f"the {name}" for name in words("Aldwater|Brissel|Cobra Run|Dneva|Ember|Falk|Grael|Hesperine"))
        + tuple(f"the {name}" for name in words("Isk|Juniper|Kalder|Lower Mave|Nadd|Orrin")),
        ("melting snow", "warm springs", "three lakes", "autumn rain"),
    ),
    Topic(
        "mountain",
        ("What is the highest mountain of {name}?", "Which peak stands above all others in {name}?"),
        (
            "The highest mountain of {name} is {e}, covered by {d}.",
            "Above all other peaks in {name} stands {e}, first climbed by two sisters.",
        ),
        tuple(f"Mount {name}" for name in words("Agar|Bellows|Corona|Dusk|Ettrick|Frey|Gomorrel|Hammerfell"))
        + tuple(f"Mount {name}" for name in words("Ivory|Jotun|Karst|Lanark|Mercy|Nocturne")),
        ("old ice", "black pines", "loose slate", "wild thyme"),
    ),
    Topic(
        "coin",
        ("What coin do people use in {name}?", "What is the currency of {name}?"),
        (
            "People in {name} pay with {e}, which bears {d}.",
            "The currency of {name} is {e}, and older coins are worth more.",
        ),
        tuple(f"the {name}" for name in words("silver ormel|brass tikka|half crown|glass denar|iron florin|pearl mark"))
        + tuple(f"the {name}" for name in words("jade shilling|copper lune|salt guilder|red ducat|bone penny"))
        + tuple(f"the {name}" for name in words("amber thaler|double real|tin obol")),
        ("a swan", "a ship", "a crowned bear", "a wheel"),
    ),
)
