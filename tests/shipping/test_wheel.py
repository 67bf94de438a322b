# SPDX-License-Identifier: Apache-2.0
"""The wheel: what is in it, and that each use works with its extra alone, away from this checkout."""

from __future__ import annotations

import json
import zipfile
from importlib import metadata
from pathlib import Path, PurePosixPath

import pytest
import yaml

from sqsim import __version__
from sqsim.base.code_digest import SHIPPED, code_digest
from tests.shipping.clean_python import ROOT, build_wheel, clean_python
from tests.sqreal.fake_server import FakeServer
from tests.sqreal.replays import scenario
from tests.sqsim.tasks import chain

PACKAGES = {"sqsim": ROOT / "sqsim", "sqreal": ROOT / "sqreal", "sqkernels": ROOT / "kernels/sqkernels"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def plain(wheel, tmp_path_factory):
    """Without any extra."""
    return clean_python(tmp_path_factory.mktemp("plain") / "venv", wheel)


@pytest.fixture(scope="module")
def client(wheel, tmp_path_factory):
    """With the extra `client`: no SGLang, no torch."""
    return clean_python(tmp_path_factory.mktemp("client") / "venv", wheel, "client")


@pytest.fixture
def run_file(tmp_path):
    """A scenario of three short tasks in a file; its traces lie beside it."""
    made = scenario(tmp_path, [chain(3, name=f"t{number}") for number in range(3)])
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(made.resolved()))
    return path


def test_it_holds_all_of_the_packages_and_nothing_else(wheel):
    held = {PurePosixPath(name) for name in zipfile.ZipFile(wheel).namelist()}
    beside = {each for each in held if each.parts[0].endswith(".dist-info")}
    on_disk = {
        PurePosixPath(package) / file.relative_to(root).as_posix()
        for package, root in PACKAGES.items()
        for file in root.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and not file.name.startswith(".")
    }
    assert held - beside == on_disk
    # SGLang imports a PyPI package named `kernels`; the folder of ours must never become one (SGLANG.md).
    assert {each.parts[0] for each in held - beside} == set(PACKAGES)
    assert {each.suffix for each in on_disk if each.parts[0] != "sqkernels"} <= SHIPPED, (
        "the digest misses them"
    )


def test_its_digest_is_the_checkouts(plain, tmp_path):
    code = (
        "import sqsim, sqsim.base.code_digest as d; "
        "print(sqsim.__file__, d.code_digest('sqsim'), d.code_digest('sqsim', 'sqreal'))"
    )
    place, *digests = plain("python", "-c", code, cwd=tmp_path).stdout.split()
    assert Path(place).is_relative_to(plain.directory)
    assert digests == [code_digest("sqsim"), code_digest("sqsim", "sqreal")]


def test_a_run_and_its_page_need_no_extra(plain, run_file):
    work = run_file.parent
    for words in (
        ("run", run_file, "--set", "engine.gpu=h100-sxm", "--set", "model=gpt-oss-20b", "--output-dir", "out"),
        ("report", "out", "-o", "page.html"),
        ("support",),
    ):
        done = plain("sqsim", *words, cwd=work)
        assert done.returncode == 0, done.stderr
    assert "</html>" in (work / "page.html").read_text()
    versions = json.loads((work / "out/run.json").read_text())["versions"]
    assert versions == {
        "sqsim": __version__,
        "code": code_digest("sqsim"),
        "simpy": metadata.version("simpy"),
        "models_sglang": "0.5.23",
    }


@pytest.mark.parametrize(
    "words",
    [("run", "mine.yaml", "--url", "http://127.0.0.1:9"), ("scenario", "--from", "URL", "-o", "new.yaml")],
)
def test_without_a_client_the_command_that_installs_one_is_named(plain, run_file, words):
    done = plain("sqreal", *words, cwd=run_file.parent)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: httpx, the HTTP client that sqreal needs, is not installed; run: pip install 'sqsim[client]'\n"
    )


def test_a_server_elsewhere_is_measured_without_sglang(client, run_file):
    assert client("python", "-c", "import sglang", cwd=run_file.parent).returncode == 1
    with FakeServer().running() as server:
        done = client(
            "sqreal",
            "run",
            run_file,
            "--url",
            server.url,
            "--time-scale",
            0.02,
            "--output-dir",
            "out",
            cwd=run_file.parent,
        )
    assert done.returncode == 0, done.stderr
    run = json.loads((run_file.parent / "out/run.json").read_text())
    assert (run["kind"], run["status"]) == ("real", "complete")
    assert run["versions"]["code"] == code_digest("sqsim", "sqreal")


def test_doctor_names_what_works_away_from_a_checkout(client, tmp_path):
    found = json.loads(client("sqreal", "doctor", "--json", cwd=tmp_path).stdout)
    verdicts = {each["name"]: each["problem"] for each in found["checks"]}
    assert verdicts["httpx"] is None
    assert verdicts["plugin"] is None
    assert verdicts["sglang"] == "not installed"
    assert any("--url URL" in each for each in found["possible"])
    assert found["fix"].startswith("pip install ")
    assert "make" not in json.dumps(found)
    for word in found["fix"].split():
        if word.endswith(".txt"):
            assert Path(word).is_relative_to(client.site)
            assert Path(word).is_file()


def test_a_server_that_cannot_be_started_names_pips_command(client, run_file):
    done = client("sqreal", "run", run_file, cwd=run_file.parent)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: sglang is not installed; run: pip install " in done.stderr
    assert "make" not in done.stderr


def test_without_triton_the_command_that_installs_it_is_named(plain, tmp_path):
    done = plain("python", "-c", "import sqkernels.topk", cwd=tmp_path)
    last = done.stderr.splitlines()[-1]
    assert last == (
        "sqkernels.errors.KernelInstallError: sqkernels needs torch, which is not installed; "
        "run: pip install 'sqsim[kernels]'"
    )


def test_kernels_need_their_extra_alone(wheel, tmp_path):
    pytest.importorskip("torch", reason="needs torch: make test-real")
    pytest.importorskip("triton", reason="needs triton: make test-real")
    python = clean_python(tmp_path / "venv", wheel, "kernels")
    code = (
        "import pkgutil, importlib, sqkernels; "
        "print(*(importlib.import_module(f'sqkernels.{each.name}').__name__ for each in pkgutil.iter_modules(sqkernels.__path__)))"
    )
    done = python("python", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "sqkernels.attention" in done.stdout.split()
