"""The page: read back as HTML, with everything that it shows; and opened in a browser where there is one."""

import base64
import errno
import io
import json
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
import soundfile
from PIL import Image
from toys.dags import MelFeatures, SoundLayer
from toys.run_folder import make_run, row, rows_of, tone, write_lines

from nemo_asr.scoring.hotwords import score_hotwords
from nemo_asr.scoring.intervals import bootstrap_interval, utterance_errors
from nemo_asr.scoring.report.page import try_report, write_report
from nemo_asr.scoring.report.scored_sets import MOST_SEGMENTS
from nemo_asr.scoring.report.set_scores import score_transcripts, write_scores
from nemo_asr.scoring.report.transcripts import read_transcripts
from nemo_lite import Dag, logging
from nemo_lite.base.errors import DataError, FileInTheWayError, UsageError
from nemo_lite.base.outputs import RECORD
from nemo_lite.core.show import write_svg

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL = "<script>alert(1)</script>\"'&"
VOID = {"meta", "img", "line", "polyline"}
NOISE = np.random.default_rng(0).uniform(-1, 1, 15 * 16000)  # what FLAC cannot make smaller


class Page(HTMLParser):
    """Elements of a page: (tag, attributes, text inside)."""

    def __init__(self, path):
        super().__init__()
        self.elements, self._open = [], []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self._open == [], "elements that are not closed"

    def handle_starttag(self, tag, attrs):
        element = [tag, dict(attrs), ""]
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append([tag, dict(attrs), ""])

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        for element in self._open:
            element[2] += data

    def all(self, tag, **wanted):
        return [
            (attributes, text)
            for name, attributes, text in self.elements
            if name == tag and all(attributes.get(key) == value for key, value in wanted.items())
        ]

    def cells(self, table):
        """All texts of a table, without white space."""
        ((_, text),) = self.all("table", id=table)
        return "".join(text.split())


def decoded(url):
    head, _, body = url.partition(",")
    kind = re.fullmatch(r"data:([a-z/+]+);base64", head)[1]
    return kind, io.BytesIO(base64.b64decode(body, validate=True))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose texts try to be HTML, with the picture of a DAG."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "Toy & more")
    recording = str(tone(folder / "wav" / "x.wav", 0.5))
    evil = row(1, f"{EVIL} one", f"two {EVIL}", EVIL, audio_filepath=recording, speaker=EVIL)
    path = folder / "transcripts" / "evil.transcripts.jsonl"
    path.write_text(json.dumps(evil) + "\n")
    (folder / "evil.yaml").write_text(f"a: {EVIL}\n</pre>\n")
    write_svg(folder / "training.svg", Dag([MelFeatures()(*SoundLayer()()[:2])[0]]))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(
            json.dumps({"kind": "evaluation", "set": f"{EVIL}\ud800", "step": 100, "wer": 0.5, "loss": 20.0}) + "\n"
        )
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def page(run):
    return Page(run / "report.html")


def test_nothing_in_the_page_is_outside_of_it(run, page):
    addresses = [
        value
        for _, attributes, _ in page.elements
        for key, value in attributes.items()
        if key in ("src", "href", "data", "poster", "srcset", "action")
    ]
    assert len(addresses) >= 20
    assert [a for a in addresses if not a.startswith(("data:image/", "data:audio/", "#"))] == []
    assert not page.all("script")
    assert not page.all("link")
    assert not re.search(r"url\(|@import", page.all("style")[0][1])
    policy = page.all("meta", **{"http-equiv": "Content-Security-Policy"})[0][0]["content"]
    assert policy.startswith("default-src 'none';")
    ids = {attributes["id"] for _, attributes, _ in page.elements if "id" in attributes}
    assert {a[1:] for a in addresses if a.startswith("#")} <= ids


def test_texts_cannot_become_html(run, page):
    content = (run / "report.html").read_text(encoding="utf-8")
    assert "<script" not in content
    assert [text for _, text in page.all("h3") if "evil" in text] == ["evil", "evil"]  # where its errors are, the worst
    texts = [text for attributes, text in page.all("div", **{"class": "text"}) if EVIL in text]
    assert len(texts) == 1
    assert any(EVIL in text for _, text in page.all("pre"))
    assert next(text for _, text in page.all("title")) == "Toy & more: report"
    assert sum(EVIL in text for _, text in page.all("figcaption") + page.all("span")) >= 2  # the keys of the charts


def test_every_recording_and_every_picture_can_be_decoded(page):
    players, pictures = page.all("audio"), page.all("img")
    assert len(players) == 7  # 6 of dev, the worst of evil; none of the others has a recording
    for attributes, _ in players:
        kind, content = decoded(attributes["src"])
        samples, rate = soundfile.read(content)
        assert (kind, rate, len(samples)) == ("audio/flac", 16000, 8000)
        assert 0.2 < np.abs(samples).max() < 0.4
        assert "controls" in attributes
    kinds = []
    for attributes, _ in pictures:
        kind, content = decoded(attributes["src"])
        kinds.append(kind)
        if kind == "image/svg+xml":
            assert ElementTree.parse(content).getroot().tag.endswith("svg")
        else:
            assert Image.open(content).size == (50, 80)
        assert attributes["alt"]
    assert kinds == ["image/png"] * len(players) + ["image/svg+xml"]


def test_the_numbers_of_the_page_are_those_of_the_transcripts(run, page):
    shown = page.cells("scored")
    for name in ("dev", "other"):
        rows = read_transcripts(run / "transcripts" / f"{name}.transcripts.jsonl")
        for use_cer in (False, True):
            counts = utterance_errors([r.hypothesis for r in rows], [r.reference for r in rows], use_cer)
            interval = bootstrap_interval(counts)
            numbers = f"{counts.rate:.2%} {interval.low:.2%} to {interval.high:.2%}"
            assert numbers.replace(" ", "") in shown


def test_characters_come_first_where_they_decide(tmp_path):
    write_lines(tmp_path / "dev.transcripts.jsonl", [row(1, "今天天气很好", "今天天气不好")])
    page = Page(write_report(tmp_path))
    header = [text for _, text in page.all("th")]
    assert header.index("CER") < header.index("WER")


def test_what_was_won_and_forgotten_is_a_table_for_each_model(tmp_path):
    ends = {f"{key}_{end}": 0.5 for key in ("before", "after", "difference") for end in ("low", "high")}
    made = {"name": EVIL, "is_guard": True, "num_utterances": 1234, "before": 0.02, "after": 0.098, **ends}
    without_words = {**made, "before": None}
    record = {"kind": "guard", "step": 3, "init_from": "runs/Old", "metric": "wer"}
    sets = [{**made, "difference": 0.078, "verdict": "forgot"}, {**without_words, "difference": None, "verdict": ""}]
    write_lines(
        tmp_path / "metrics.jsonl", [{**record, "path": path, "sets": sets} for path in ("run/model", "run/av")]
    )
    page = Page(write_report(tmp_path))
    assert [attributes["class"] for attributes, _ in page.all("table") if "class" in attributes] == ["guard", "guard"]
    shown = [text for _, text in page.all("td")]
    assert shown[:5] == ["guard", "1,234", "2.00\xa0%", "50.00\xa0% to 50.00\xa0%", "9.80\xa0%"]
    assert shown[6:9] == ["+7.80", "+50.00 to +50.00", "forgot"]
    assert len(shown) == 2 * 9


def test_the_curves_are_drawn(page):
    assert [text for _, text in page.all("figcaption")] == [
        *("Loss", "Word error rate", "Character error rate", "Learning rate"),
    ]
    assert len(page.all("polyline")) == 4 + 3 + 2 + 1
    for attributes, _ in page.all("polyline"):
        pairs = [tuple(map(float, pair.split(","))) for pair in attributes["points"].split()]
        assert all(0 <= x <= 480 and 0 <= y <= 260 for x, y in pairs)


def test_differences_are_marked(tmp_path):
    write_lines(tmp_path / "dev.transcripts.jsonl", [row(1, "the cat sat on mats", "a cat on mats top")])
    page = Page(write_report(tmp_path))
    legend = ["deleted: said, not recognised"], ["inserted: recognised, not said"], ["substituted"]
    marked = [[text for _, text in page.all(tag)] for tag in ("del", "ins", "mark")]
    assert marked == [[*legend[0], "sat"], [*legend[1], "top"], [*legend[2], "the", "a"]]
    ((_, text),) = page.all("div", **{"class": "text"})
    assert text.split("\n") == ["saidthe cat sat on mats", "hearda cat on mats top"]


def test_characters_are_not_torn_apart(tmp_path):
    write_lines(tmp_path / "dev.transcripts.jsonl", [row(1, "今天三点", "今天四点吗")])
    ((_, text),) = Page(write_report(tmp_path)).all("div", **{"class": "text"})
    assert text.split("\n") == ["said今天三点", "heard今天四点吗"]


def cut_and_hot(folder):
    """An evaluation with segments and hot words, as ``eval`` writes it."""
    recording = str(tone(folder / "a.wav", 4.0))
    segments = [{"start": 0.5, "end": 1.5, "text": f"go {EVIL}"}, {"start": 2.0, "end": 4.0, "text": ""}]
    about = {"audio_filepath": recording, "duration": 4.0}
    many = [{"start": n / 5, "end": n / 5 + 0.1, "text": f"w{n}"} for n in range(MOST_SEGMENTS + 3)]
    rows = [
        row(1, f"go to {EVIL}", f"go {EVIL} {EVIL}", **about, segments=segments, without_hotwords="go to"),
        row(2, "stop", "go", **about, segments=many, without_hotwords="go"),
        row(3, "stop", "", **about, segments=[], without_hotwords=""),
    ]
    path = write_lines(folder / "dev.transcripts.jsonl", rows)
    columns = [[each[name] for each in rows] for name in ("reference", "without_hotwords", "hypothesis")]
    write_scores(folder / "dev.scores.json", score_transcripts(path), score_hotwords([EVIL, "rare"], *columns))
    return write_report(folder)


def test_segments_are_counted_listed_with_their_texts_and_lie_on_the_picture(tmp_path):
    page = Page(cut_and_hot(tmp_path))
    length = 1.0 + 2.0 + (MOST_SEGMENTS + 3) * 0.1
    away = f"{12 - length:.1f}s({100 * (12 - length) / 12:.0f}%)"
    assert f"dev3{MOST_SEGMENTS + 5}12.0s{away}0.1s0.1s2.0s1" in page.cells("cut")
    assert next(text for _, text in page.all("figcaption")) == "Share of segments, by length"
    listed = [" ".join(text.split()) for _, text in page.all("li")]
    assert f"0.50 to 1.50 s go {EVIL}" in listed
    assert "2.00 to 4.00 s nothing recognised" in listed
    assert [text for _, text in page.all("summary") if "segments" in text] == ["the other 3 segments"]
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "2 segments, 1.0 of 4.0 s cut away" in text
    assert "0 segments: nobody speaks here, 4.0 of 4.0 s cut away" in text
    pale = [attributes["style"] for attributes, _ in page.all("i", **{"class": "away"})]
    assert {"left:0.00%;width:12.50%", "left:37.50%;width:12.50%", "left:0.00%;width:100.00%"} <= {*pale}
    places = [(attributes["style"], text) for attributes, text in page.all("i", **{"class": "place"})]
    assert {("left:12.50%", "1"), ("left:50.00%", "2")} <= {*places}


def test_hot_words_have_a_table_marks_in_the_texts_and_what_they_changed(tmp_path):
    page = Page(cut_and_hot(tmp_path))
    assert len(page.all("script")) == 0
    ((_, table),) = page.all("table", **{"class": "hotwords"})
    assert "".join(table.split()).endswith(f"{EVIL}10(0%)1(100%)01".replace(" ", ""))
    told = " ".join(text for _, text in page.all("p"))
    assert "Nobody says, and nothing was taken for: rare" in told
    assert re.search(r"other words: 50.00.% \(.* without, 75.00.% \(.* with hot words", told)
    assert "Hot words changed the text of 1 of 3 utterances." in told
    assert "1 error with hot words, 1 without, in 3 words" in (tmp_path / "report.html").read_text(encoding="utf-8")
    shown = [text for _, text in page.all("div", **{"class": "text"}) if "without" in text]
    assert shown == [f"saidgo to {EVIL}\nheardgo {EVIL} {EVIL}\nwithoutgo to"] * 2  # what changed, the worst
    hot = [text for _, text in page.all("span", **{"class": "hot"})]
    assert hot.count(EVIL) == 2 * 3  # said, right, and a false alarm, twice each


def test_older_results_have_neither_section_and_damaged_scores_are_named(tmp_path):
    write_lines(tmp_path / "dev.transcripts.jsonl", [row(1, "a", "b")])
    (tmp_path / "dev.scores.json").write_text('{"hotwords": 1}')
    page = Page(write_report(tmp_path))
    assert [text for _, text in page.all("h2")] == ["Error rates", "Where the errors are", "Worst utterances"]
    write_lines(tmp_path / "dev.transcripts.jsonl", [row(1, "a", "b", without_hotwords="b")])
    with pytest.raises(DataError, match=r"dev\.scores\.json: the scores are damaged: got Expected `object \| null`"):
        write_report(tmp_path)
    (tmp_path / "dev.scores.json").unlink()
    assert write_report(tmp_path).is_file()


def test_a_run_without_evaluations_has_a_page_too(tmp_path):
    write_lines(tmp_path / "metrics.jsonl", [{"kind": "train", "step": 1, "loss": 2.0, "lr": 0.1}])
    page = Page(write_report(tmp_path))
    assert [text for _, text in page.all("h2")] == ["Curves"]


def test_the_page_may_go_elsewhere_and_replaces_an_older_one_alone(tmp_path, monkeypatch):
    write_lines(tmp_path / "dev.transcripts.jsonl", [row(1, "a", "b")])
    assert write_report(tmp_path, tmp_path / "x.html") == tmp_path / "x.html"
    first = (tmp_path / "x.html").read_text()
    write_lines(tmp_path / "dev.transcripts.jsonl", [row(1, "a", "a")])
    write_report(tmp_path, tmp_path / "x.html")
    assert "<h1>" in (tmp_path / "x.html").read_text() != first
    assert not (tmp_path / "report.html").exists()
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(FileInTheWayError, match=r"report\.html: the file was not written by nemo-lite report; give"):
        write_report(tmp_path)
    warnings = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: warnings.append(text % values))
    assert try_report(tmp_path) is None
    assert warnings[0].endswith(f"nemo-lite report; move it away, or nemo-lite report {tmp_path} --overwrite")
    assert (tmp_path / "report.html").read_text() == "mine"
    assert write_report(tmp_path, overwrite=True).read_text() != "mine"


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_an_error_of_one_line_and_a_warning_at_the_end_of_a_run(tmp_path, monkeypatch):
    write_lines(tmp_path / "dev.transcripts.jsonl", [row(1, "a", "b")])
    monkeypatch.setattr("nemo_lite.base.files.synchronise", full_disk)
    with pytest.raises(UsageError, match=r"report\.html: the disk is full; free some space"):
        write_report(tmp_path)
    warnings = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: warnings.append(text % values))
    assert try_report(tmp_path) is None
    assert len(warnings) == 1
    assert warnings[0].startswith(f"No report was written: {tmp_path}/report.html: the disk is full")
    assert sorted(path.name for path in tmp_path.iterdir()) == [RECORD, "dev.transcripts.jsonl"]


def test_the_end_of_a_run_saves_pictures_of_its_dags(tmp_path):
    write_lines(tmp_path / "dev.transcripts.jsonl", [row(1, "a", "b")])
    dag = Dag([MelFeatures()(*SoundLayer()()[:2])[0]])
    path = try_report(tmp_path, dags={"training": dag})
    assert path == tmp_path / "report.html"
    kind, content = decoded(Page(path).all("img", alt="DAG training")[0][0]["src"])
    assert kind == "image/svg+xml"
    assert content.read() == (tmp_path / "training.svg").read_bytes()


def test_a_damaged_file_does_not_end_a_run_either(tmp_path, monkeypatch):
    (tmp_path / "dev.transcripts.jsonl").write_text("{\n")
    warnings = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: warnings.append(text % values))
    assert try_report(tmp_path) is None
    assert "dev.transcripts.jsonl:1: the file of transcripts cannot be read: invalid JSON" in warnings[0]


@pytest.mark.long
@pytest.mark.slow
def test_a_page_of_3000_long_utterances_is_small_and_made_in_seconds(tmp_path):
    rows = rows_of(3000, 0.2)
    soundfile.write(tmp_path / "noise.wav", NOISE, 16000)
    for name in ("a", "b"):
        write_lines(
            tmp_path / "transcripts" / f"{name}.transcripts.jsonl",
            [{**each, "audio_filepath": str(tmp_path / "noise.wav")} for each in rows],
        )
    steps = [{"kind": "train", "step": step, "loss": 10 + step % 7, "lr": 0.1} for step in range(100_000)]
    write_lines(tmp_path / "metrics.jsonl", steps)
    before = time.process_time()
    path = write_report(tmp_path)
    assert time.process_time() - before < 15  # about 4 s where nothing else runs
    assert path.stat().st_size < 10_000_000
    clips = Page(path).all("audio")
    assert 0 < len(clips) < 20


def in_browser(path, script, *options):
    """What a script finds in the page: the page's own policy, which forbids scripts, is taken out."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text(encoding="utf-8"))
    found = "document.body.innerHTML = `<pre id=found>${JSON.stringify(found())}</pre>`"
    script = (
        f"<script>const found = () => ({script});window.onload = () => setTimeout(() => {{ {found} }}, 1500)</script>"
    )
    copy = path.with_name("probe.html")
    copy.write_text(text.replace("</body>", script + "</body>"), encoding="utf-8", errors="replace")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=6000", *options]
    command += [f"--user-data-dir={path.parent / 'browser'}", "--dump-dom", copy.as_uri()]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    return json.loads(re.search(r'<pre id="found">(.*?)</pre>', printed)[1])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser: install chromium")
def test_a_browser_plays_the_recordings_and_shows_the_pictures(run, page):
    wide = (
        "{sounds: [...document.querySelectorAll('audio')].map(a => [a.duration, a.error]),"
        "pictures: [...document.images].map(i => i.naturalWidth),"
        "paper: getComputedStyle(document.body).backgroundColor,"
        "wide: document.documentElement.scrollWidth - document.documentElement.clientWidth}"
    )
    light = in_browser(run / "report.html", wide, "--window-size=1200,900")
    assert light["sounds"] == [[0.5, None]] * len(page.all("audio"))
    assert len(light["pictures"]) == len(page.all("img"))
    assert all(width > 0 for width in light["pictures"])
    dark = in_browser(run / "report.html", wide, "--window-size=500,900", "--blink-settings=preferredColorScheme=0")
    assert (light["paper"], dark["paper"]) == ("rgb(255, 255, 255)", "rgb(20, 25, 31)")
    assert (light["wide"], dark["wide"]) == (0, 0)  # nothing sticks out, also on a phone
