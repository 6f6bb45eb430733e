"""The page in a real browser, if there is one: selenium, chromium and its driver."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow.serve.settings import Settings

from ..conftest import Server, Steps, dressed

pytestmark = pytest.mark.slow

HOSTILE = (
    "<img src=x onerror=alert(1)> ![i](http://127.0.0.1:1/i.png) **b** "
    "[j](javascript:alert(2)) [k](https://k.example/)\n\n<script>alert(3)</script>"
)
KEY = "a key"
EOS, N_VOCAB = 257, 259


def echo(seen: list[int]) -> NDArray[np.float32]:
    """Of a model that answers with what stands between the last # and ~ of the question."""
    said = bytes(token if token < 256 else 0 for token in seen)
    _, _, asked = said.rpartition(b"#")
    text, _, answer = asked.partition(b"~")
    logits = np.zeros(N_VOCAB, np.float32)
    logits[text[len(answer)] if len(answer) < len(text) else EOS] = 100
    return logits


class Browser:
    """A page, and what a user does with it."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url
        for kind in ("browser", "performance"):
            driver.get_log(kind)  # of another page
        driver.get(url)

    def find(self, css: str) -> Any:
        return self.driver.find_element("css selector", css)

    def all(self, css: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", css))

    def click(self, css: str) -> None:
        self.find(css).click()

    def type(self, css: str, *keys: str) -> None:
        self.find(css).send_keys(*keys)

    def text(self, css: str) -> str:
        return str(self.find(css).text)

    def wait(self, is_so: Callable[[], object]) -> None:
        """Until something is so; a test that hangs here fails after a minute."""
        end = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < end, self.find("body").text
            time.sleep(0.02)

    def ask(self, text: str) -> None:
        self.type("#question", text, ENTER)

    def ended(self) -> bool:
        return not self.find("#stop").is_displayed() and bool(self.all(".assistant"))

    def answer(self) -> str:
        return self.text(".assistant:last-child .body")

    def check_clean(self) -> None:
        """No message in the console, and no request to anybody else."""
        # A 401 that makes the page ask for the key is told by the browser itself.
        told = [each["message"] for each in self.driver.get_log("browser")]
        assert not [text for text in told if "status of 401" not in text]
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                assert url.startswith((self.url, "blob:", "data:")), url


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("there is no chromium with its driver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # it refuses to start otherwise
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(programs[1])
    with webdriver.Chrome(options=options, service=service) as found:
        yield found


@pytest.fixture
def browsing(driver: Any, make_model: Any) -> Iterator[Callable[..., tuple[Browser, Steps]]]:
    """browsing(n, **settings): the page of a server with the echo, which may make n steps."""
    made: list[tuple[Server, Steps, Browser]] = []

    def start(n: int, **settings: Any) -> tuple[Browser, Steps]:
        model = dressed(make_model(echo))
        steps, context_of = Steps(model), model.context

        def context(*args: Any, **how: Any) -> Any:
            found = context_of(*args, **how)
            found.before_call = steps.hold
            return found

        model.context = context
        given = Settings(port=0, n_parallel=1, n_ctx=2048, n_cells=8192, drain_s=0.0, **settings)
        server = Server({"echo": model}, given)
        steps.allow(n)
        made.append((server, steps, Browser(driver, f"{server.serving.url}/")))
        return made[-1][2], steps

    yield start
    for server, steps, browser in made:
        steps.allow(1 << 20)
        browser.driver.get("about:blank")
        server.stop()


ENTER, ESCAPE, CONTROL, SHIFT = "\ue007", "\ue00c", "\ue009", "\ue008"


def test_hostile_answers_stay_text(browsing: Any) -> None:
    browser, _ = browsing(1 << 20)
    browser.ask(f"#{HOSTILE.replace(chr(10), SHIFT + ENTER + SHIFT)}~")
    browser.wait(browser.ended)
    shown = browser.answer()
    for part in ("<img src=x onerror=alert(1)>", "![i](http://127.0.0.1:1/i.png)", "<script>"):
        assert part in shown
    assert not browser.all("main img, main script")
    links = [link.get_attribute("href") for link in browser.all(".assistant a")]
    assert links == ["https://k.example/"]
    assert browser.text(".assistant strong") == "b"
    assert "tokens/s" in browser.text(".assistant .stats")
    browser.check_clean()


def test_an_answer_streams_stops_and_outlasts_a_reload(browsing: Any) -> None:
    browser, steps = browsing(4)
    browser.ask("#one two three~")
    browser.wait(lambda: browser.answer().startswith("on"))
    assert browser.find("#stop").is_displayed()
    browser.type("#question", ESCAPE)
    browser.wait(browser.ended)
    stopped = browser.answer()
    assert "one two three".startswith(stopped)
    assert browser.text(".assistant .note") == "stopped"
    browser.driver.refresh()
    browser.wait(lambda: browser.all(".assistant .body"))
    assert browser.answer() == stopped

    steps.allow(1 << 20)
    browser.click(".assistant .tools button:last-child")
    browser.wait(lambda: browser.ended() and browser.answer() == "one two three")
    browser.check_clean()


def test_messages_change_and_conversations_come_and_go(browsing: Any) -> None:
    browser, _ = browsing(1 << 20)
    browser.wait(lambda: browser.all("#model option"))
    first = len(browser.all("#conversations li"))
    browser.type("body", CONTROL + "k" + CONTROL)
    browser.ask("#a~")
    browser.wait(lambda: browser.ended() and browser.answer() == "a")
    browser.click(".user .tools button:last-child")
    browser.type(".user textarea", "\ue009a\ue009", "#b~", CONTROL + ENTER)
    browser.wait(lambda: browser.ended() and browser.answer() == "b")
    assert [each.text for each in browser.all(".user .body")] == ["#b~"]

    browser.click("#rename")
    browser.type("#answer", "Letters", ENTER)
    browser.wait(lambda: browser.text("#title") == "Letters")
    assert len(browser.all("#conversations li")) == first + 1
    browser.driver.refresh()
    browser.wait(lambda: browser.text("#title") == "Letters")
    browser.driver.execute_script("document.querySelector('.remove').click()")
    browser.click("#yes")
    browser.wait(lambda: len(browser.all("#conversations li")) == first)
    browser.check_clean()


def test_settings_reach_the_server_and_tokens_are_coloured(browsing: Any) -> None:
    browser, _ = browsing(1 << 20)
    browser.wait(lambda: browser.all("#model option"))
    browser.click("#settings")
    browser.type("#max_tokens", "2")
    browser.type("#system", "Be brief.")
    browser.click("#colour")
    browser.ask("#word~")
    browser.wait(browser.ended)
    assert [each.text for each in browser.all(".assistant .token.p5")] == ["w", "o"]
    assert "cut off" in browser.text(".assistant .note")
    browser.type("#temperature", "-")  # no number: it is left out
    browser.click("#colour")
    assert browser.answer() == "wo"
    browser.check_clean()


def test_the_key_is_asked_for(browsing: Any) -> None:
    browser, _ = browsing(1 << 20, keys=(KEY,))
    for typed in ("wrong", KEY):
        browser.wait(lambda: browser.find("#ask").is_displayed())
        browser.type("#answer", typed, ENTER)
        browser.wait(lambda: not browser.find("#ask").is_displayed() or browser.text("#more"))
    browser.wait(lambda: not browser.find("#ask").is_displayed())
    browser.ask("#open~")
    browser.wait(lambda: browser.ended() and browser.answer() == "open")
    assert browser.driver.execute_script("return JSON.stringify(localStorage)").find(KEY) < 0
    browser.check_clean()
