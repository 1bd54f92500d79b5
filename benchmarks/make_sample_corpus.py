# ruff: noqa: E501 - sentences are kept whole
"""Write workloads/sample_sharegpt.json: conversations of our own in a dozen languages.

The text is made here, from sentences written for this purpose, so that it belongs to the project
and is readable. The same seed gives the same file. Run: python benchmarks/make_sample_corpus.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path

OUT = Path(__file__).parent.parent / "workloads" / "sample_sharegpt.json"
SIZE = 190_000

PLACES = [
    "a small bakery near the harbour",
    "a secondary school with six hundred pupils",
    "a bicycle repair shop",
    "a county library",
    "a farm that grows apples and pears",
    "a volunteer fire brigade",
    "a dental practice",
    "a museum of old radios",
    "a company that rents out sailing boats",
    "a housing cooperative with forty flats",
    "a weather station on a mountain",
    "a theatre with two stages",
    "a regional bus line",
    "a laboratory that tests drinking water",
    "a games studio of nine people",
    "a market garden on the edge of the city",
    "an observatory",
    "a choir of eighty singers",
]
THINGS = [
    "booking appointments",
    "keeping track of stock",
    "planning the weekly rota",
    "sending reminders by text message",
    "measuring temperature and humidity",
    "answering the same ten questions by e-mail",
    "making invoices at the end of the month",
    "sorting photographs by year",
    "finding out which products sell together",
    "translating notices into three languages",
    "checking forms for missing fields",
    "forecasting how many people will come",
    "logging repairs and spare parts",
    "sharing one calendar between four teams",
    "archiving letters from the last century",
]
TOOLS = [
    "a spreadsheet with nineteen sheets",
    "paper cards in a wooden drawer",
    "a program from 2004 that nobody may touch",
    "a Python script of two hundred lines",
    "a database that lives on one laptop",
    "a wall calendar and coloured pins",
    "three chat groups and a shared folder",
    "a web form that sends an e-mail",
]
TROUBLES = [
    "two people often change the same entry at the same time",
    "the numbers at the end of the week never add up",
    "it takes most of Monday morning",
    "names with accents turn into question marks",
    "nobody knows who changed what, or when",
    "it stops working when the network is slow",
    "new colleagues need weeks to learn it",
    "we find mistakes only when a customer calls",
    "dates appear in four different formats",
    "it cannot be used on a telephone",
]
LIMITS = [
    "We have no budget for licences, but one person can give it two days a week.",
    "It has to run on the old computer in the back room.",
    "Personal data must not leave the building.",
    "Please keep it simple enough that I can explain it to my aunt.",
    "We would like to see a first result within a fortnight.",
    "Whatever we do, the old records must stay readable.",
    "I can program a little, but I have never looked after a server.",
    "It must also work on days when the internet does not.",
]
ASKS = [
    "What would you change first, and why?",
    "Could you compare two ways of doing this and say which you would take?",
    "Please write a step-by-step plan that fits on one page.",
    "Which three questions should I ask before spending any money?",
    "Can you draft an e-mail that explains the change to everybody?",
    "What is likely to go wrong, and how would we notice early?",
    "Give me a table with the tasks, who does them and how long they take.",
    "How would you test that it really works?",
]
STEPS = [
    "Write down what happens today, step by step, on a single sheet of paper.",
    "Pick the one step that costs the most time and leave the others alone.",
    "Agree on one format for dates: year, month, day.",
    "Give every record a number that never changes, even when the name does.",
    "Make a copy of everything each night, and try once a month to restore it.",
    "Let two people use it for a week before you tell the others.",
    "Count the mistakes before and after; otherwise you will argue about feelings.",
    "Keep the old way alive for a month, then switch it off on a fixed day.",
    "Choose text files over anything clever: they can still be read in twenty years.",
    "Put the rules where the work is done, not in a manual that nobody opens.",
    "Log each change with the time and the person.",
    "Ask the most sceptical colleague to test it; that person finds the gaps.",
]
FOLLOW = [
    "Thanks. The second point worries me: what if somebody forgets it?",
    "That helps. Can you make the plan half as long?",
    "Good, but we are only four people. What can we leave out?",
    "And how would the answer change if we had ten times as many customers?",
    "Please rewrite that for readers who have never used a computer at work.",
    "Could you give an example with real numbers?",
    "Why not simply buy something ready-made?",
    "What would you measure after the first month?",
]
ANSWERS = [
    "Then make it hard to forget: let the form refuse to close while the field is empty.",
    "Leave out everything that does not save time in the first week. The rest can wait.",
    "With ten times as many customers the work no longer fits into one head, so the order of the"
    " steps matters more than the tool. I would split the list by day and give each day an owner.",
    "Buying is fine when your way of working is like everybody else's. Write down five things that"
    " are special about yours; if you find fewer than two, buy.",
    "Take 120 orders a week, four minutes each. That is eight hours. If half of them need one"
    " minute instead of four, you win three hours, and that pays for the two days of set-up within"
    " six weeks.",
    "Measure three things: minutes per task, mistakes per hundred, and how often somebody asks for"
    " help. If the last one does not fall, the first two will not stay low.",
]
CODE = [
    "def mean(values):\n    total = 0.0\n    for value in values:\n        total += value\n"
    "    return total / len(values)",
    "SELECT name, COUNT(*) AS visits\nFROM visits\nWHERE day >= '2024-01-01'\nGROUP BY name\n"
    "ORDER BY visits DESC\nLIMIT 10;",
    'for file in *.csv; do\n  wc -l "$file"\ndone | sort -n',
    "const total = items.reduce((sum, item) => sum + item.price * item.count, 0);\n"
    "console.log(total.toFixed(2));",
    '{\n  "name": "harbour-bakery",\n  "open": ["06:30", "18:00"],\n  "closed_on": ["Sunday"]\n}',
]
CODE_ASKS = [
    "What does this do, and what happens with an empty list?",
    "Can you find the mistake? It works on my machine but not on the old one.",
    "Please explain it line by line, and then make it shorter.",
    "How would you write a test for this?",
]

# Language -> (subjects, requests about a subject, answers, follow-up questions).
OTHERS: dict[str, tuple[list[str], list[str], list[str], list[str]]] = {
    "de": (
        [
            "einen Gemüsegarten auf dem Balkon",
            "eine Lesegruppe für Jugendliche",
            "ein altes Fahrrad",
            "den Umzug in eine kleinere Wohnung",
            "einen Chor ohne Dirigenten",
            "eine Wetterstation",
        ],
        [
            "Ich plane {} und habe nur am Wochenende Zeit. Womit fange ich an, und was kann warten?",
            "Erkläre mir bitte in einfachen Worten, worauf es ankommt, wenn man sich um {} kümmert.",
            "Unsere Nachbarn möchten gemeinsam {} finanzieren. Schreibe einen freundlichen Aushang.",
        ],
        [
            "Fangen Sie mit dem an, was sich leicht rückgängig machen lässt, und schreiben Sie auf, was Sie"
            " gelernt haben. Für größere Ausgaben reicht es, zwei Wochen später zu entscheiden.",
            "Wichtig sind drei Dinge: ein fester Termin, eine Liste der Aufgaben und jemand, der nachfragt.",
        ],
        ["Und wie viel würde das ungefähr kosten?", "Kannst du das bitte kürzer fassen?"],
    ),
    "fr": (
        [
            "une fête de quartier",
            "un vieux poêle à bois",
            "un cours de cuisine pour débutants",
            "un voyage à vélo le long du canal",
            "une petite bibliothèque associative",
        ],
        [
            "Nous préparons {} et nous sommes cinq bénévoles. Peux-tu proposer un calendrier réaliste ?",
            "Je ne connais rien à ce sujet : {}. Quelles sont les erreurs que l'on fait au début ?",
            "Écris une lettre polie à la mairie pour demander de l'aide avec {}.",
        ],
        [
            "Commencez par ce qui dépend des autres : les autorisations, la salle, les dates. Le reste se"
            " décide plus vite qu'on ne le croit, surtout si chacun sait ce qu'il doit faire.",
            "L'erreur la plus fréquente est de vouloir tout prévoir. Gardez un quart du temps libre.",
        ],
        ["Et s'il pleut toute la journée ?", "Peux-tu donner un exemple concret ?"],
    ),
    "es": (
        [
            "un huerto escolar",
            "una radio comunitaria",
            "la mudanza de mi abuela",
            "un taller de reparación de relojes",
            "una excursión de tres días por la sierra",
        ],
        [
            "Quiero organizar {} con poco dinero. ¿Qué harías primero y qué dejarías para después?",
            "¿Podrías explicarme, paso a paso, cómo se prepara {} sin olvidar lo importante?",
            "Necesito un texto breve para presentar {} a personas que nunca han oído hablar de ello.",
        ],
        [
            "Primero averigua quién más quiere participar: con tres personas constantes se llega más lejos"
            " que con veinte entusiastas. Después, fija una fecha y trabaja hacia atrás.",
            "Anota los gastos desde el primer día; así nadie tendrá que adivinar al final.",
        ],
        ["¿Y si nadie se apunta?", "¿Cuánto tiempo llevaría todo eso?"],
    ),
    "pt": (
        ["uma feira de livros usados", "um diário de viagem", "a reforma de uma cozinha pequena"],
        [
            "Estou pensando em {} e tenho apenas dois meses. Que plano você sugere?",
            "Quais perguntas devo fazer antes de começar {}?",
        ],
        [
            "Divida o trabalho em semanas e termine cada uma com algo que se possa mostrar. Assim você"
            " percebe cedo quando uma ideia não funciona, e ainda há tempo para mudar."
        ],
        ["E se o orçamento acabar antes do fim?"],
    ),
    "it": (
        [
            "una mostra di fotografie di famiglia",
            "un forno a legna nel cortile",
            "un corso di italiano",
        ],
        [
            "Vorrei realizzare {} insieme ai vicini. Da dove si comincia?",
            "Scrivi un elenco di controllo per {}, con le scadenze più importanti.",
        ],
        [
            "Si comincia dalle persone, non dalle cose: chiedete chi ha tempo il giovedì sera. Poi scegliete"
            " un obiettivo così piccolo che non possa fallire."
        ],
        ["Puoi aggiungere i costi?"],
    ),
    "ru": (
        ["школьная газета", "небольшая пасека", "ремонт старого пианино", "шахматный кружок"],
        [
            "Мы задумали такое дело: {}. С чего лучше начать, если времени мало, а опыта ещё меньше?",
            "Объясни, пожалуйста, простыми словами, что нужно для этого: {}.",
        ],
        [
            "Начните с самого простого: найдите одного человека, который уже это делал, и задайте ему пять"
            " вопросов. Записывайте всё, что удивляет: именно там обычно прячутся трудности."
        ],
        ["А сколько это может стоить?", "Можно короче?"],
    ),
    "zh": (
        ["社区图书角", "阳台上的小菜园", "老照片的整理", "周末的徒步活动", "一家小面馆的菜单"],
        [
            "我们想做这件事：{}。只有三个人，预算也不多，应该先做什么，后做什么？",
            "请用简单的话说明，做好“{}”需要注意哪些问题，并举两个例子。",
            "帮我写一段介绍“{}”的文字，大约一百五十个字，语气要亲切自然。",
        ],
        [
            "先从最小的一步开始：写下目标、时间和负责的人。每周看一次进展，如果连续两周没有变化，就说明计划太大了，"
            "需要拆成更小的部分。不要急着买东西，很多东西可以先借来试一试。",
            "注意三点：第一，时间要固定；第二，分工要清楚；第三，出了问题要马上说出来。",
        ],
        ["如果下雨怎么办？", "可以再短一点吗？", "大概需要多少钱？"],
    ),
    "ja": (
        ["町内の夏祭り", "小さな菜園", "古い時計の修理", "読書会", "週末の山歩き"],
        [
            "{}を計画しています。人手が足りないので、何から始めればよいか教えてください。",
            "{}について、初めての人にもわかるように、順番に説明してもらえますか。",
        ],
        [
            "まず、やりたいことを一枚の紙に書き出してください。次に、誰がいつまでに何をするのかを決めます。"
            "最初から完璧を目指さず、小さく試してから広げるほうが、結局は早く進みます。"
        ],
        ["費用はどのくらいかかりますか。", "もう少し短くまとめてください。"],
    ),
    "ko": (
        ["동네 작은 도서관", "옥상 텃밭", "오래된 사진 정리", "주말 등산 모임"],
        [
            "{} 계획을 세우고 있습니다. 시간이 많지 않은데 무엇부터 시작하면 좋을까요?",
            "{}에 대해 처음 듣는 사람도 이해할 수 있게 차근차근 설명해 주세요.",
        ],
        [
            "먼저 목표를 한 문장으로 적어 보세요. 그다음 필요한 일을 작은 단위로 나누고, 누가 언제까지 맡을지"
            " 정하면 됩니다. 처음부터 크게 벌이지 말고 한 달 동안 시험해 보는 것이 좋습니다."
        ],
        ["비용은 얼마나 들까요?"],
    ),
    "ar": (
        ["مكتبة صغيرة في الحي", "حديقة فوق السطح", "إصلاح ساعة قديمة", "رحلة مدرسية قصيرة"],
        [
            "نفكر في مشروع جديد: {}. من أين نبدأ إذا كان الوقت قليلا والميزانية محدودة؟",
            "اشرح لي بكلمات بسيطة ما الذي يجب أن ننتبه إليه عند العمل على هذا الأمر: {}.",
        ],
        [
            "ابدأوا بخطوة صغيرة يمكن التراجع عنها، ثم اكتبوا ما تعلمتموه كل أسبوع. من المفيد أن يكون لكل"
            " مهمة شخص واحد مسؤول عنها، وأن يعرف الجميع موعد اللقاء القادم."
        ],
        ["وكم سيكلف ذلك تقريبا؟"],
    ),
    "hi": (
        ["मोहल्ले का छोटा पुस्तकालय", "छत पर सब्ज़ियों का बगीचा", "पुरानी साइकिल की मरम्मत"],
        [
            "हम यह काम शुरू करना चाहते हैं: {}। समय कम है, तो सबसे पहले क्या करना चाहिए?",
            "कृपया सरल शब्दों में बताइए कि इसमें किन बातों का ध्यान रखना ज़रूरी है: {}।",
        ],
        [
            "पहले एक छोटा लक्ष्य तय कीजिए और उसे लिख लीजिए। हर हफ़्ते देखिए कि क्या बदला, और जो काम नहीं कर रहा"
            " उसे छोड़ने में देर मत कीजिए। ज़िम्मेदारी एक ही व्यक्ति के पास होनी चाहिए।"
        ],
        ["इसमें कितना ख़र्च आएगा?"],
    ),
    "el": (
        ["μια παλιά βάρκα", "ένα μικρό θέατρο", "έναν κήπο με βότανα"],
        ["Θέλουμε να φροντίσουμε {} και έχουμε μόνο τα Σάββατα. Από πού να αρχίσουμε;"],
        [
            "Ξεκινήστε από κάτι μικρό και γράψτε τι μάθατε. Την επόμενη εβδομάδα θα ξέρετε αν αξίζει να"
            " συνεχίσετε με τον ίδιο τρόπο."
        ],
        ["Πόσο θα κοστίσει;"],
    ),
}
MARKS = ["👍", "🙂", "🚲 🌧️", "☕️", "🎻", "🧮", "½ kg", "n° 7", "25 °C", "€ 3.50", "10⁻³", "α ≤ β"]


def main() -> None:
    """Write the file."""
    draw = random.Random(20)
    conversations: list[dict[str, object]] = []
    size = 0
    while size < SIZE:
        turns = _english(draw) if draw.random() < 0.5 else _other(draw)
        if draw.random() < 0.1:
            turns.insert(0, ("system", "You answer briefly, in the language of the question."))
        conversation = {
            "id": f"sample_{len(conversations)}",
            "conversations": [{"from": role, "value": text} for role, text in turns],
        }
        conversations.append(conversation)
        size += len(json.dumps(conversation, ensure_ascii=False).encode())
    lines = ",\n".join(json.dumps(c, ensure_ascii=False) for c in conversations)
    OUT.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{OUT}: {len(conversations)} conversations, {OUT.stat().st_size:,} bytes")


def _english(draw: random.Random) -> list[tuple[str, str]]:
    if draw.random() < 0.2:
        question = f"{draw.choice(CODE_ASKS)}\n\n```\n{draw.choice(CODE)}\n```"
    else:
        question = _request(draw)
    turns = [("human", question), ("gpt", _plan(draw))]
    for _ in range(draw.choice([0, 0, 1, 1, 2, 3])):
        follow = draw.choice(FOLLOW)
        if draw.random() < 0.4:
            follow += " " + " ".join(_limits(draw))
        turns += [("human", follow), ("gpt", f"{draw.choice(ANSWERS)} {draw.choice(STEPS)}")]
    return turns


def _request(draw: random.Random) -> str:
    place, thing, tool = draw.choice(PLACES), draw.choice(THINGS), draw.choice(TOOLS)
    first, second = draw.sample(TROUBLES, 2)
    year, people = draw.randrange(1962, 2023), draw.randrange(3, 95)
    openings = [
        f"I work for {place}. Since {year} we have been {thing} with {tool}.",
        f"We are {people} people at {place}, and {thing} takes far too long with {tool}.",
        f"My sister runs {place} and asked me for help with {thing}. So far they use {tool}.",
    ]
    parts = [draw.choice(openings), f"The trouble is that {first}, and {second}."]
    parts += _limits(draw)
    if draw.random() < 0.3:
        parts.append(f"({draw.choice(MARKS)})")
    text = " ".join(parts)
    if draw.random() < 0.3:
        listed = "\n".join(f"- {trouble}" for trouble in draw.sample(TROUBLES, 3))
        text += f"\n\nColleagues also told me:\n{listed}"
    return (
        f"{text}\n\n{draw.choice(ASKS)}" if draw.random() < 0.5 else f"{text} {draw.choice(ASKS)}"
    )


def _limits(draw: random.Random) -> list[str]:
    return draw.sample(LIMITS, draw.choice([1, 1, 2, 3]))


def _plan(draw: random.Random) -> str:
    steps = draw.sample(STEPS, draw.randrange(2, 7))
    numbered = "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1))
    return f"Here is what I would do:\n\n{numbered}\n\n{draw.choice(ANSWERS)}"


def _other(draw: random.Random) -> list[tuple[str, str]]:
    subjects, requests, answers, follow = OTHERS[draw.choice(list(OTHERS))]
    question = draw.choice(requests).format(draw.choice(subjects))
    if draw.random() < 0.25:
        question += f" {draw.choice(MARKS)}"
    turns = [("human", question), ("gpt", draw.choice(answers))]
    if draw.random() < 0.5:
        turns += [("human", draw.choice(follow)), ("gpt", draw.choice(answers))]
    return turns


if __name__ == "__main__":
    main()
