"""An engine whose server starts at once: a script that speaks as much of SGLang's HTTP as one engine needs."""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

INFO = {"version": "0.5.23", "weight_version": "0", "incremental_streaming_output": True, "max_req_input_len": 506}


class Handler(BaseHTTPRequestHandler):
    """Answers every call; a turn is its process's id, in digits."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(json.dumps(INFO).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        ids = [int(digit) for digit in str(os.getpid())]
        meta = {"finish_reason": {"type": "length"}, "output_token_logprobs": [[-1.0, token, None] for token in ids]}
        event = json.dumps({"output_ids": ids, "meta_info": {**meta, "weight_version": "0"}})
        self.answer(f"data: {event}\n\ndata: [DONE]\n\n".encode() if self.path == "/generate" else b"{}")

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    print("serving", flush=True)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
else:
    from agentrl.cluster.server import ServerProcess, free_port
    from agentrl.rollout.engines.plugin import ServerPlugin
    from agentrl.rollout.engines.servers.sglang import SGLangEngine

    class SmallEngine(SGLangEngine):
        """`engine=sglang` over the script."""

        def _launch(self) -> str:
            port = free_port()
            self.server = ServerProcess("small", [sys.executable, __file__, str(port)], log=Path(str(self.config.log)))
            return f"http://127.0.0.1:{port}"

    ENGINE = ServerPlugin(SmallEngine, ("sglang",), SGLangEngine.supported, sleep_option="enable_memory_saver")
