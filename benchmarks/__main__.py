"""All tables in one run: `python -m benchmarks [--only accounting noise] [--smoke] [--json]`.

`python -m benchmarks --markdown benchmarks/README.md` also writes what was printed into that page, between
its two marks. Each table is one process, so that its ratios are made within one process and its caches are
its own. Nothing heavy should run beside it.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys

TABLES = ("accounting", "clipping", "growth", "noise", "step")
PACKAGES = ("jax", "jaxlib", "optax", "jax-privacy", "dp-accounting", "opacus", "opake")
MARKS = "<!-- tables: written by --markdown -->", "<!-- end of tables -->"


def version(package: str) -> str:
    """Returns the installed version of a package, or "absent"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def processor() -> str:
    """Returns the processor's name where the system tells it, and the number of cores."""
    name, info = platform.machine(), pathlib.Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text().splitlines()
        name = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), name)
    return f"{name}, {os.cpu_count()} cores"


def page(header: dict[str, str], printed: dict[str, str]) -> str:
    """Returns the tables as a part of a page; what is no Markdown table stands as it was printed."""
    parts = ["  \n".join(f"{name}: {value}" for name, value in header.items())]
    for table, text in printed.items():
        body = text.strip() if "|---" in text else f"```text\n{text.strip()}\n```"
        parts.append(f"## {table.capitalize()}\n\n{body}")
    return "\n\n".join(parts)


def insert(path: pathlib.Path, text: str) -> None:
    """Writes the text between the page's marks; a page without them gets both at its end."""
    old = path.read_text() if path.is_file() else ""
    before, _, rest = old.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    path.write_text(f"{before.rstrip()}\n\n{MARKS[0]}\n\n{text}\n\n{MARKS[1]}\n{after.lstrip()}")


def run(command: list[str]) -> tuple[str, int]:
    """Returns what the command printed, which is shown as it comes, and its exit code."""
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    return "".join(lines), process.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--smoke", action="store_true", help="small sizes, to see that all runs")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="JSON objects, header first")
    output.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="page to write into")
    args = parser.parse_args()
    header = {
        "date": datetime.date.today().isoformat(),
        "machine": processor(),
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
    }
    print(json.dumps(header) if args.json else "  ".join(f"{k} {v}" for k, v in header.items()))
    printed, failed = {}, []
    for table in args.only:
        if not args.json:
            print(f"\n== {table}", flush=True)
        options = ["--smoke"] * args.smoke + ["--json"] * args.json
        printed[table], code = run([sys.executable, "-m", f"benchmarks.{table}", *options])
        if code:
            failed.append(table)
    if failed:
        sys.exit(f"failed, nothing written: {', '.join(failed)}")
    if args.markdown:
        insert(args.markdown, page(header, printed))


if __name__ == "__main__":
    main()
