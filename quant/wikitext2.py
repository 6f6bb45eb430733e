r"""Whether a text has lines of WikiText-2's test split, on which perplexity is measured.

Kept are hashes of every sixth of its long lines, of which every article has some:

    python -c 'import sys; from pyflow.quant import wikitext2 as w; print(*w.marks(sys.stdin))' \
        < wiki.test.raw
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

_LONG = 100
"""Characters: what is as long is in no other text by chance."""
_EVERY = 6

_KEPT = """
8a4e51a896e5 a7dc4758791a 58b7ae37b2dc 169e3d4ab5ab 4b40d3c41818 cc54fbafbc31 c7e96f43dd3b
cf12191e05ed f1482441744f d707fe7f2ef0 a739ca34d0ed 68bf4d5fe523 5433bf420b73 fecd2b565e6f
f3e61c19dae1 0be42700de36 5cd6462e2cb5 9d8b482e9d60 28c61c723ba6 ab864689b418 1d706dbc3fe3
a6d7b976c77b 4f75b50f74fc 162560d68327 e869a5e411c1 1fb48bba50f8 eb02fd753181 042e6072eacf
3e8a1ded89a5 8a4de6b0076b 0169df28e773 cdc4ad49a7c2 c7d84533c307 e26fc12e23ba 7534b6f18bb9
656004ea8ddb 0311b2b55d48 a52e6e50c623 9e98196be7eb c2602fb72322 5c6bb9bfeb14 bfe2b5e7c4ef
856629e48702 2bb7a80e52a9 039175685634 1d3c848955ce 3784fa50f45a 7edcf5b7ee30 3b542cd8cca4
611ed6778e85 713af4fdc1be 37d7f23e6502 8579a9710128 02597c7251e2 b7edd6433509 af53125aa8c8
26a2b31e2ec9 dbd9e30b572f 0d0a45906ab5 3d4ba21e83a2 777594e2a1ee 21f192f9445e ba34f99fc4f8
13e1c64f4853 f536ffd39179 31cafedba31d 5f7ddb80f0a4 69e2eaa90e52 a6a3d489bc20 b36fe1013956
11a61ffb28a3 fe7a17ee443b d144cb658daa 0c9f34d44cd0 b0bfdeb72370 d20e94fc4ce6 d4ec5051c18e
20c85b0d6ac6 941e89f72a25 b7b6bbd66bde 9d1d49e31a85 e839080c2d08 043fa21f2403 af04e32b2632
d86c8bc962bf 50bb029e029a f7358d31a363 4ae46a466edb ddb010314c6a 2a419bce6037 f22a6a3a3815
ad414c126159 fcad5f34a69b 98938c90a549 12c245d98a29 9b647fa70a11 c0f854c608d4 9aad3e2d04b9
8aae1da46db4 a5b07dc7bb43 b7ec6fa57f18 3a39ff8efa16 dc1c520a855f f9864f97e340 e96e2ab68375
a59299dbd861 3a74609580b6 005570c605a1 da7878398101 0f7366314a8e 120927643ac8 965c051e35b7
972dbaf6e873 e175c99e6917 aaf8e6c3da3b 903d33831083 718de3ded491 3f14374813a0 b0b60eef7492
ab687768b342 4f09395a7ce6 bb594d9c1d62 613cbdff7687 090770f49988 ef8e12e2308a 14b66a850fa6
c7263af38522 d31385251286 767c1254db43 6e7fa718e36f 89e58dff1f23 55b59c749d29 ad6e898d5341
59342413bb07 aab49b312ad7 952ee97c3a66 f91463d63ebc 0c26430731fe 8b518ceb1a73 10a591b56121
da20d5c3b9de 210a06a04aca 5325f391e01c 27940cf79f19 1c7d3d476bb7 ca270afc77af e486df1dc2cf
1b57dff9cb33 0eb9aad409cf 5daa7510c7e3 7c8f637826be bee0c5cb49a0 12d327cda00b 496716501f18
a56271281f0f 89fe24f8954b ed66c782fd57 50a385049d1b 26ecd6cefdf4 9e707f3d34f6 1de97efdf80f
ec3069dfe9a1 7c8330024099 cab2cbd0d468 3de9a66c14a2 7cd1b7d15bcc 04228e5b4693 967136feda4c
43723430b777 4deb7988ec98 83187442ae19 13bd7fd7c8b2 fcba79f22378 c2130e4a2e69 2facfa1af464
41b3b9fedb73 d327f3153ce3 f12e4eb0fdef df6497613d42 380bd5a76052 d67c0a27870d cce2b6eff140
7a4f758c532c 1dbd31c8a5f0 ce56de223a5f fc447ba04962 aac980d2f04d bff31d0ca4f3 f5bf60cd5ae2
302fc8a967cf e3e6e924761d 1dcf05a40e55 3c1305fc9b16 60e970d07992 8faaab3b7d2b c4297cddcd38
3b8a1e414736 0f742d1fe0a7 9bf8494282dd 8b701ffe37ac b26566692c4b 1e918eb4274b 3ac31631b1ae
d975770717ea adf3cb1c118f f13aead4b552 2053a9a49f22 55710f7b17bf 1c7590c71e80 daef30653022
4c5922d6db96 c2e807e24771 ade638c64c7a 85f5fb9b7920 bee815cfd530 11583d2a9abc fa15e0069ac0
7055318594a3 2c0d259181f4 458c31d87e9c 9c59dfcf139e bb5b37caafda d045021d3156 0cc6fa2e7b3f
dad92cfc3d34 183e88252492 57d789ab92e1 ca816f4eba4f ba3e84e04dcb 515f416c0755 da4024254e80
bcd551cb0034 f3f0f4d1d51e 9f645ce465a5 7e2ad34cc7da b6858fc400d1 4a444e3968d3 c783a2cce28b
d958e3c59b10 b80d5c600775 546f0ee37049 8057a347f70e fd3eb485a502 05fa77c24999 b9685ad7c7a8
d221a78ebee2 0530f8d687e2 cf00fadb57a6 c2c9adf28b7b 81007bf246f9 bc119e974dbb d74322489c28
a46437c2c041 0394bde10176 ace52acc6ab8 eb5d500498db d8bf127a9766 f0c8f81be074 a000e81d7665
13faa4aa0226 a44d8efe7583 d4b04d6cd987 61cf2ee00890 77f681d2b96e eb03fcfd9376 edf43c157371
caae47071ed0 f805a28dd634 cd82251539ff 57e0157ca037 81d4c09c5d38 447b6b20d52d 99560502b0f7
f585728d6cf7 d745757df4d9 7a1ed8cf086e 77049855225b 148c951f980b 46e49cf36c58 6a1088b3fc9d
3b1db6fe95eb dacfabdf207a 409a52d4e526 f87db18e699c e9d8dcd93e64 c95d5b89c63b 0b820654fa6a
a85c71b246d2 7920a36889b7 9c90c1b744e5 0cfbdc119504 9abe8d6c6a59 3cea721bb4a2 be595d82eb73
a6ec5ad2b09d 26e7ddb8f923 232c420aaa09 104aba8f9f66 08254d804ca6 b0c980f04be6 32215d53ffbd
7354dd7d9b24 fbb0ac577661 c4b915b3efce a1517264d823 94e53479cf01
"""
_MARKS = frozenset(_KEPT.split())


def has_test_lines(text: str) -> bool:
    """Whether one of the lines is among those kept, blanks at its ends aside."""
    return not _MARKS.isdisjoint(map(_hash, _long(text.split("\n"))))


def marks(lines: Iterable[str]) -> list[str]:
    """Of the lines of the test split: what is kept."""
    return [_hash(line) for line in _long(lines)][::_EVERY]


def _long(lines: Iterable[str]) -> Iterator[str]:
    return (line for line in map(str.strip, lines) if len(line) >= _LONG)


def _hash(line: str) -> str:
    """32 bits would meet by chance in some large texts."""
    return hashlib.sha256(line.encode("utf-8", "surrogateescape")).hexdigest()[:12]
