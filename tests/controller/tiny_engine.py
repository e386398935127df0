"""The smallest thing a launcher can launch: says that it is healthy and how it was started."""

from __future__ import annotations

import argparse
import http.server
import json
import os
import sys


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid()})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format, *args):
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int)
    asked, _ = parser.parse_known_args()
    if os.environ.get("NO_GPU_FOR") == os.environ.get("DEGREE"):
        sys.exit("no such model")
    http.server.ThreadingHTTPServer((asked.host, asked.port), Answers).serve_forever()
