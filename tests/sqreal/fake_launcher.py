# SPDX-License-Identifier: Apache-2.0
"""Runs in place of `python -m sglang.launch_server`, with the same flags; what it does is in FAKE_MODE.

`sleep` never answers; `die` says so and ends; `stubborn` never answers, ignores SIGTERM and has a child that does;
`serve` answers /health and /server_info as SGLang would, `stranger` answers something else there. Modes that serve
first print FAKE_SAYS, as a plugin would.
"""

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

RAW = {
    "version": "0.5.23",
    "model_path": "/models/tiny-llama",
    "device": "cpu",
    "page_size": 1,
    "context_length": 2048,
    "chunked_prefill_size": 128,
    "max_prefill_tokens": 16384,
    "schedule_conservativeness": 1.0,
    "swa_full_tokens_ratio": 0.8,
    "kv_cache_dtype": "auto",
    "dtype": "auto",
    "mem_fraction_static": 0.5,
    "tp_size": 1,
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "tokenizer_path": "/models/tiny-llama",
    "enable_streaming_session": False,
    "schedule_policy": "fcfs",
    "internal_states": [
        {
            "effective_max_running_requests_per_dp": 8,
            "memory_usage": {"token_capacity": 4096, "token_capacity_swa": None},
        }
    ],
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        answer = {"nothing": "known"} if os.environ["FAKE_MODE"] == "stranger" else RAW
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    mode = os.environ["FAKE_MODE"]
    if mode == "die":
        sys.stdout.write("loading\nno such kernel\n")
        raise SystemExit(3)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.fork()
    if mode in {"serve", "stranger"}:
        sys.stdout.write(os.environ.get("FAKE_SAYS", "") + "\n")
        sys.stdout.flush()
        port = int(sys.argv[sys.argv.index("--port") + 1])
        HTTPServer(("127.0.0.1", port), Handler).serve_forever()
    time.sleep(600)


if __name__ == "__main__":
    main()
