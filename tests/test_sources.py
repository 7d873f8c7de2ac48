"""tb.simulate.sources: the one hash of sources; sweeps, kept Verilog, kept comparisons use it.

Shown to fail: a hash without names; one without C++; one that joins files without their lengths.
"""

from tb.simulate.sources import source_files, sources_digest


def test_digest_is_of_everything(tmp_path):
    """Names, bytes, C++, where one file ends and the next begins, and the texts."""

    def made(files: dict[str, str], *texts: str) -> str:
        for file in source_files(tmp_path, ("a", "one.toml")):
            file.unlink()
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        return sources_digest(tmp_path, ("a", "one.toml", "missing.txt"), *texts)

    found = [
        made({"a/x.py": "1"}),
        made({"a/y.py": "1"}),
        made({"a/x.py": "2"}),
        made({"a/x.py": "1", "a/y.cpp": ""}),
        made({"a/x.py": "1", "a/y.cpp": "1"}),
        made({"a/x.py": "1\0a/y.cpp\0"}),
        made({"a/x.py": "1", "one.toml": ""}),
        made({"a/x.py": "1"}, "text"),
    ]
    assert len(set(found)) == len(found)
    assert made({"a/x.py": "1", "a/note.txt": "no source"}) == found[0]
