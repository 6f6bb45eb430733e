"""Wrong command lines end with exit code 2 and one line that names what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyflow.cli.terminal.output import asks_for_json

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["genrate"], "'generate'"),
        (["zzz"], "there are chat, generate"),
        (["generate", "-p", "x", "--tempp", "1"], "--temp"),
        (["generate", "-p", "x", "-t", "0"], "-t"),
        (["generate", "-p", "x", "-t", "many"], "'many'"),
        (["generate", "-p", "x", "-t", "1.5"], "1 to 1024, found '1.5'"),
        (["generate", "-p", "x", "-t", ""], "1 to 1024, found ''"),
        (["generate", "-p", "x", "-c", "-1"], "0 or more, found '-1'"),
        (["generate", "-p", "x", "--spec-tree", "x"], "0 to 1, found 'x'"),
        (["generate", "-p", "x", "--chat", "--raw"], "--raw"),
        (["generate", "-p", "x", "--raw", "--chat"], "--raw"),
        (["generate", "-p", "x", "extra"], "-p TEXT"),
        (["tokenize", "extra"], "-p TEXT"),
        (["generate", "-p", "x", "--pipeline", "pipeinfer"], "--stages N"),
        (["quantize", "x", "y", "--type", "Q9"], "Q4_K_M"),
        (["quantize", "x", "y", "--type", "Q4_0", "--tensor-type", "a=Q9"], "IQ4_XS"),
        (["generate", "-p", "x", "--override-kv", "x"], "KEY=VALUE"),
        (["generate", "-p", "x", "--override-kv", "a=int:x"], "int, found 'x'"),
        (["generate", "-p", "x", "--override-kv", "a=bool:1"], "bool, found '1'"),
        (["generate", "-p", "x", "--rope-scale", "0"], "--rope-scale"),
        (["generate", "-p", "x", "--rope-scaling", "yarn"], "--rope-scale"),
        (["generate", "-p", "x", "--yarn-orig-ctx", "9"], "--yarn-orig-ctx"),
        (["inspect", "x", "--override-kv", "a=1"], "--memory"),
        (["generate", "-p", "x", "-n", "0"], "expected 1 to 2147483647, or -1"),
        (["generate", "-p", "x", "-n", "9" * 20], "expected 1 to 2147483647, or -1"),
        (["generate", "-p", "x", "--temp", "-1"], "--temperature: expected 0"),
        (["generate", "-p", "x", "--top-p", "nan"], "--top-p: expected"),
        (["generate", "-p", "x", "--seed", "-2"], "--seed: expected 0 to 2^64 - 1, or -1 to draw"),
        (["generate", "-p", "x", "--seed", str(1 << 64)], "--seed: expected 0 to 2^64 - 1, or -1"),
        (["generate", "-p", "x", "--repeat-last-n", "-2"], "--repeat-last-n: expected"),
        (["generate", "-p", "x", "--mirostat-ent", "-1"], "--mirostat-ent: expected 0 bits"),
        (["generate", "-p", "x", "--fsd", "1", "--mirostat", "2"], "--fsd: expected 0 beside"),
        (["generate", "-p", "x", "--banned-token", "-3"], "--banned-token: expected"),
        (["generate", "-p", "x", "--banned-token", "259"], "--banned-token: expected a token"),
        (["generate", "-p", "x", "--dry-sequence-breaker", ""], "--dry-sequence-breaker"),
        (["generate", "-p", "x", "-l", "999999+1"], "--logit-bias: expected a token from 0 to 258"),
        (["generate", "-p", "x", "-c", "1"], "-c: a context of 1 token"),
        (["generate", "-p", "x", "-m", ""], "'--model': expected some text"),
        (["generate", "--stop"], "(see 'pyflow generate --help')"),
        (["generate", "-f", "/dev/zero"], "/dev/zero: has more than"),
        (["generate", "-f", "a\0b"], "cannot be read: embedded null byte"),
        (["generate", "-p", "x", "-l", "15043"], "--logit-bias: expected TOKEN+BIAS"),
        (["generate", "-p", "x", "--top-k", "9999999999"], "found 9999999999"),
        (["generate", "-p", "x", "--json", "--logprobs", "999999"], "--logprobs: expected at most"),
        (["generate", "-p", "x", "-l", "a+1"], "--logit-bias: expected TOKEN+BIAS"),
        (["generate", "-p", "x", "--stop", ""], "--stop"),
        (["generate", "-p", "x", "--logprobs", "3"], "--json"),
        (
            ["generate", "-p", "x", "-c", "8193"],
            "-c: 8193 tokens of context are more than the 8192",
        ),
        (["generate", "-p", ""], "prompt is empty"),
        (["generate", "-p", " \n"], "prompt holds nothing but blanks"),
        (["generate", "-p", "a\udcffb"], "-p: byte 1 (0xff) is not UTF-8"),
        (["generate"], "prompt is empty"),
        (["generate", "-f", "/no/such/file"], "/no/such/file: cannot be read: No such file"),
        (["generate", "-f", "/"], "/: cannot be read: Is a directory"),
        (["generate", "-f", "x", "-"], "leave one out"),
        (["generate", "--jsonl", "-p", "x"], "--jsonl needs -f"),
        (["generate", "--cache-type", "q4_0", "-p", "x"], "f16"),
        (["chat"], "standard input is empty"),
        (["chat", "-sys", "\udc80"], "0x80"),
        (["inspect", "x", "-c", "5"], "--memory"),
        (["bench", "-p", "0", "-n", "0"], "nothing to measure"),
        (["bench", "-p", "5-1"], "expected numbers"),
        (["bench", "-t", "0"], "expected 1 or more"),
        (["bench", "--rows", "0"], "expected 1 or more"),
        (["bench", "--rows", "1,513"], "expected at most 512, found 513"),
        (["bench", "--rows", "1", "-d", "1,8192"], "8193 tokens of context are more than the 8192"),
        (["bench", "-t", "5000"], "expected at most 1024, found 5000"),
        (["bench", "-p", "1-1000000000"], "expected at most 1000 numbers"),
        (["bench", "foo"], "no command is called 'foo'; there are serve, spec"),
        (["bench", "-p", "8", "spec"], "-p stands before 'spec'"),
        (["bench", "-f", "x"], "-f needs --pipeline"),
        (["bench", "--spec", "lookup"], "--spec needs --pipeline"),
        (["bench", "--lookahead", "3,3,3"], "--lookahead needs --pipeline"),
        (["bench", "--draft-model", "self"], "--draft-model needs --pipeline"),
        (
            ["bench", "--pipeline", "iterative", "--stages", "2", "--spec", "jacobi"],
            "--pipeline iterative cannot be used with --spec jacobi",
        ),
        (
            ["bench", "--pipeline", "speculative", "--stages", "2", "--spec", "pool"],
            "--spec pool needs --spec-pool",
        ),
        (["bench", "-o", "md", "--json"], "--json cannot be used with -o md"),
        (["bench", "--json", "-omd"], "--json cannot be used with -o md"),
        (["bench", "spec", "-o", "md", "--json"], "-o md"),
        (["eval", "compare", "x", "-f", "-", "-o", "csv", "--json"], "-o csv"),
        (["cluster", "check", "-o", "md", "--json"], "-o md"),
        (
            ["eval", "foo"],
            "no command is called 'foo'; there are compare, embed, kld, ppl, sts "
            "(see 'pyflow eval --help')",
        ),
        (["eval", "ppl", "-f"], "(see 'pyflow eval ppl --help')"),
        (["eval", "ppl"], "--file"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(run: Run, args: list[str], message: str) -> None:
    code, out, err = run(*args)
    assert code == 2
    assert bool(out) == asks_for_json(args)
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert "--help')" in err
    assert ". (see" not in err
