"""All tables in one run: `python -m benchmarks [--only accounting noise] [--json]`.

Each table is one process, so that its ratios are made within one process and its caches are its own.
Nothing heavy should run beside it.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys

TABLES = ("accounting", "clipping", "noise", "step")
PACKAGES = ("jax", "jaxlib", "optax", "jax-privacy", "dp-accounting", "opacus", "opake")


def version(package: str) -> str:
    """Returns the installed version of a package, or "absent"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--json", action="store_true", help="one JSON object a line, header first")
    args = parser.parse_args()
    header = {
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        **{package: version(package) for package in PACKAGES},
    }
    print(json.dumps(header) if args.json else "  ".join(f"{k} {v}" for k, v in header.items()))
    failed = []
    for table in args.only:
        if not args.json:
            print(f"\n== {table}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{table}", *(["--json"] if args.json else [])]
        if subprocess.run(command).returncode:
            failed.append(table)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
