"""Do the logs of a stack keep what was said in bodies, spans and tokens out, whatever fails?"""

from __future__ import annotations

import http.server
import json
import socket
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import pytest
from controller_processes import TOKEN, processes, until

from heddle.app.supervise import free_range

MARK = "Vq7-said-in-confidence"
"""In every body, header value, span and wrong token that is sent here."""
WRONG = {"Authorization": f"Bearer {MARK}"}


class Echoes(http.server.BaseHTTPRequestHandler):
    """An engine that is healthy and answers every step with an error that repeats it."""

    def do_GET(self):
        self._say(200, b'{"status": "%s"}' % MARK.encode())

    def do_POST(self):
        self._say(500, self.rfile.read(int(self.headers["Content-Length"])))

    def _say(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        pass


@contextmanager
def echoing():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echoes)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def steps(http):
    """Whole ones, streams, broken ones; the statuses they got."""
    chat = {"messages": [{"role": "user", "content": MARK}], "max_tokens": 4}
    headers = {"X-Heddle-Trajectory-Id": MARK, "X-Heddle-Run": MARK, "X-Heddle-Task": MARK}
    asked = [http.post("/v1/chat/completions", json=chat, headers=headers) for _ in range(6)]
    asked.append(http.post("/v1/chat/completions", json={**chat, "stream": True}))
    generate = {"text": MARK, "rid": MARK, "sampling_params": {"max_new_tokens": 4}}
    asked += [http.post("/generate", json=generate) for _ in range(6)]
    for broken in (f'{{"{MARK}', f'["{MARK}"]', f'{{"priority": "{MARK}"}}', f"\udcff{MARK}"):
        content = broken.encode("utf-8", "surrogateescape")
        asked.append(http.post("/generate", content=content))
    asked.append(http.post("/heddle/v1/acquire", json={"trajectory": MARK, "prompt_tokens": MARK}))
    return {reply.status_code for reply in asked}


def changes(http):
    """Without the token, with a wrong one, with the right one and nonsense."""
    right = {"Authorization": f"Bearer {TOKEN}"}
    for headers in ({}, WRONG, right):
        http.post("/heddle/v1/switches", json={"who": MARK, "why": MARK, MARK: 1}, headers=headers)
        http.post("/add_worker", params={"url": f"http://{MARK}"}, headers=headers)
        http.post("/flush_cache", json={}, headers=headers)
    tool = {"run": MARK, "tool": MARK, "status": "end", "error": MARK}
    http.post(f"/heddle/v1/trajectories/{MARK}/tool", json=tool)
    return http.post("/heddle/v1/switches", json={}, headers=WRONG).status_code


def spans(url):
    """What a trainer sends, what nobody can read, what came with a wrong token."""
    attribute = {"key": MARK, "value": {"stringValue": MARK}}
    span = {
        "traceId": "1" * 32, "spanId": "2" * 16, "name": MARK, "startTimeUnixNano": "1",
        "endTimeUnixNano": "2", "attributes": [attribute],
    }  # fmt: skip
    whole = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    broken = {"resourceSpans": [{"scopeSpans": [{"spans": [{**span, "startTimeUnixNano": MARK}]}]}]}
    bodies = [json.dumps(whole), json.dumps(broken), f'{{"{MARK}"', MARK]
    for kind in ("application/json", "application/x-protobuf"):
        for body in bodies:
            headers = {"content-type": kind, **WRONG}
            httpx.post(f"{url}/v1/traces", content=body, headers=headers, trust_env=False)


def no_http(url):
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as raw:
        raw.sendall(f"GET /{MARK} HTTP/1.1\r\n{MARK}\0 {MARK}\r\n\r\n".encode())
        assert b" 400 " in raw.recv(1000)


@pytest.mark.timeout(120)
def test_no_token_no_body_and_no_span_is_in_any_log(tmp_path):
    with processes(tmp_path) as p, echoing() as broken:
        p.collector()
        engine = p.engine("w0")
        dead = f"http://127.0.0.1:{free_range(41_000, 1)}"
        p.controller("--worker", p.at("w0"), "--worker", broken, "--worker", dead)
        with httpx.Client(base_url=p.at("controller"), timeout=60, trust_env=False) as http:
            statuses = steps(http)
            refused = changes(http)
            spans(p.at("otlp"))
            no_http(p.at("controller"))
            no_http(p.at("otlp"))
            engine.kill()
            engine.wait()
            steps(http)
            until(lambda: http.get("/heddle/v1/workers").json()[0]["alive"] is False)
    assert {200, 400, 500} <= statuses
    assert refused == 401
    logs = {path.name: path.read_text(errors="replace") for path in tmp_path.rglob("*.log")}
    assert {"collector.log", "controller.log", "w0.log"} <= logs.keys()
    # They do say something: an engine's launch, whom the controller could not reach.
    assert "serving" in logs["w0.log"]
    assert dead in logs["controller.log"]
    for name, text in logs.items():
        for secret in (MARK, TOKEN):
            at = text.find(secret)
            assert at < 0, f"{name}: {text[max(0, at - 300) : at + 100]}"
