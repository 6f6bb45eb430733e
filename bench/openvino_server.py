"""OpenVINO GenAI's continuous batching, as far as `pyflow bench serve` asks a server.

    python bench/openvino_server.py MODEL.gguf PORT THREADS USERS

runs where openvino-genai is installed. Its answers are token ids,
so that detokenizing costs it nothing.
"""

from __future__ import annotations

import argparse
import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

Tokens = queue.SimpleQueue[list[int] | None]


class Engine:
    """One thread makes steps as long as there are requests."""

    def __init__(self, path: str, n_threads: int, n_users: int) -> None:
        import openvino_genai

        self._genai = openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = n_users
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            path, scheduler, "CPU", {"INFERENCE_NUM_THREADS": n_threads}
        )
        self.tokenizer = self._pipeline.get_tokenizer()
        self._waiting: queue.SimpleQueue[tuple[Any, Any, Tokens]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, body: dict[str, Any]) -> tuple[int, Tokens]:
        """The tokens of the prompt, and those of the answer as they come; None ends them."""
        prompt = self.tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        ids = self.tokenizer.encode(prompt, add_special_tokens=False).input_ids
        config = self._genai.GenerationConfig(
            max_new_tokens=body["max_tokens"],
            temperature=body.get("temperature", 1.0),
            do_sample=body.get("temperature", 1.0) > 0,
            rng_seed=body.get("seed", 0),
            eos_token_id=self.tokenizer.get_eos_token_id(),
        )
        answer: Tokens = queue.SimpleQueue()
        self._waiting.put((ids, config, answer))
        return int(np.prod(ids.shape)), answer

    def _run(self) -> None:
        running: list[tuple[Any, Tokens]] = []
        number = 0
        while True:
            while not running or not self._waiting.empty():
                ids, config, answer = self._waiting.get()
                handle = self._pipeline.add_request(number, ids, config)
                running.append((handle, answer))
                number += 1
            self._pipeline.step()
            for handle, answer in running:
                while handle.can_read():
                    for output in handle.read().values():
                        answer.put(list(output.generated_ids))
            for handle, answer in running:
                if handle.get_status().name != "RUNNING":
                    answer.put(None)
            running = [pair for pair in running if pair[0].get_status().name == "RUNNING"]


class Handler(BaseHTTPRequestHandler):
    engine: Engine
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        self._head("application/json")
        self.wfile.write(json.dumps({"data": [{"id": "openvino"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        n_prompt, answer = self.engine.ask(body)
        self._head("text/event-stream")
        n = 0
        while (ids := answer.get()) is not None:
            n += len(ids)
            self._event({"choices": [{"delta": {"content": f"{ids} "}}]})
        usage = {"prompt_tokens": n_prompt, "completion_tokens": n}
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: Any) -> None:
        pass

    def _head(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def _event(self, data: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("path", help="a GGUF file")
    for name in ("port", "n_threads", "n_users"):
        parser.add_argument(name, type=int)
    args = parser.parse_args()
    Handler.engine = Engine(args.path, args.n_threads, args.n_users)
    ThreadingHTTPServer(("127.0.0.1", args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
