"""`turnback job`: what the state machine has run on a deployment's machines."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.backends import get_backend
from moto.server import ThreadedMotoServer
from typer.testing import CliRunner, Result

from runtime.cli import app
from runtime.cli_job import sample_of
from runtime.contract.model import model_prefix
from runtime.contract.profile import load_profile
from runtime.contract.rules import profile_names
from runtime.contract.status import BOOT_FILE, STATUS_FILE
from runtime.launch.machine import Machine
from runtime.local.checks import free_ports
from runtime.local.rehearsal import account
from tests.bench.conftest import trained_tokenizer
from tests.router.fleet import HOST, Fleet, running_fleet, url_of, write_tokenizer

KEY = "a-key-of-at-least-16-characters"
MODEL = "mock/1"
CONFIG = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "hidden_size": 32,
}


@pytest.fixture
def server() -> Iterator[None]:
    """An emulated account on loopback: a benchmark has a loop and threads of its own."""
    (port,) = free_ports(1)
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    with account.only_this_account(port):
        boto3.setup_default_session()
        yield
    server.stop()
    for service in ("s3", "secretsmanager", "cloudwatch"):
        get_backend(service).reset()  # this process's, not the server's


@pytest.fixture
def buckets(server: None, tmp_path: Path) -> None:
    """The staged model's small files, and an empty bucket for results."""
    s3, where = boto3.client("s3"), {"LocationConstraint": account.REGION}
    for name in ("models", "results"):
        s3.create_bucket(Bucket=name, CreateBucketConfiguration=where)
    trained_tokenizer().save(str(tmp_path / "tokenizer.json"))
    prefix = model_prefix(MODEL)
    s3.upload_file(str(tmp_path / "tokenizer.json"), "models", f"{prefix}tokenizer.json")
    s3.put_object(Bucket="models", Key=f"{prefix}config.json", Body=json.dumps(CONFIG))
    boto3.client("secretsmanager").create_secret(
        Name="keys",
        SecretString=json.dumps({"keys": [{"key": KEY, "tenant": "admin", "admin": True}]}),
    )


def words(step: str, url: str, nodes: Path, work: Path, *more: str) -> list[str]:
    """The command line that the state machine sends, with what a test puts in its place."""
    given = {
        "--run-id": "one",
        "--deployment": "ours",
        "--url": url,
        "--api-keys-secret": "keys",
        "--profile": "smoke",
        "--model": MODEL,
        "--model-bucket": "models",
        "--results-bucket": "results",
        "--nodes-file": str(nodes),
        "--work": str(work),
    }
    return ["job", "measure", step, *(word for pair in given.items() for word in pair), *more]


async def ran(arguments: list[str]) -> Result:
    """The command, beside the servers of this loop."""
    return await asyncio.to_thread(CliRunner().invoke, app, arguments)


def nodes_file(fleet: Fleet, path: Path) -> Path:
    """The fleet's engines."""
    lines = [
        f'[[{role}]]\nurl = "{url_of(engine)}"\n'
        for role, engines in (("prefill", fleet.prefills), ("decode", fleet.decodes))
        for engine in engines
    ]
    path.write_text("".join(lines), "utf-8")
    return path


def uploaded() -> set[str]:
    """Keys of the bucket of results."""
    found = boto3.client("s3").list_objects_v2(Bucket="results")
    return {each["Key"] for each in found.get("Contents", ())}


def metric_names() -> set[str]:
    """In the kit's namespace."""
    found = boto3.client("cloudwatch").list_metrics(Namespace="turnback")["Metrics"]
    return {each["MetricName"] for each in found}


@pytest.mark.usefixtures("buckets")
async def test_a_benchmark_is_run_uploaded_and_counted(tmp_path: Path) -> None:
    """Through the router, with the deployment's key and tokenizer; the answer is one line."""
    async with running_fleet(tmp_path) as fleet:
        nodes = nodes_file(fleet, tmp_path / "nodes.toml")
        done = await ran(words("bench", fleet.url, nodes, tmp_path / "work"))
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["verdict"], told["mode"], told["complete"]) == ("good", "validate", True)
    assert told["report"] == "s3://results/runs/one/report.json"
    names = ("report.json", "report.html", "requests.csv", "summary.md", "deployed/turns.jsonl")
    assert {f"runs/one/{name}" for name in names} <= uploaded()
    assert {"SpeedUp", "TtftP50Ms", "PulledShare", "FailedTurns"} <= metric_names()


@pytest.mark.usefixtures("buckets")
async def test_the_report_says_what_the_deployment_has(tmp_path: Path) -> None:
    """Not what its profile has: `turnback tune` and readers take it for what ran."""
    changes = {
        "kv.decoder_kv_blocks_ttl_s": "600",
        "kv.backends": "UCX,LIBFABRIC",
        "serving.prefill_prefix_caching": "True",
        "bench.price.usd_per_node_hour": "63.3",
    }
    options = [word for path, value in changes.items() for word in ("--set", f"{path}={value}")]
    async with running_fleet(tmp_path) as fleet:
        nodes = nodes_file(fleet, tmp_path / "nodes.toml")
        done = await ran(words("bench", fleet.url, nodes, tmp_path / "work", *options))
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "work" / "one" / "bench" / "report.json").read_text("utf-8"))
    assert report["workload"]["kv"]["decoder_kv_blocks_ttl_s"] == 600
    assert report["workload"]["kv"]["backends"] == ["UCX", "LIBFABRIC"]
    assert report["pass"]["prefill_prefix_caching"] is True
    assert report["pass"]["bench"]["price"]["usd_per_node_hour"] == 63.3
    assert report["savings"]["prefill_usd"] is not None


@pytest.mark.usefixtures("buckets")
async def test_a_missed_bar_is_a_verdict_and_no_error(tmp_path: Path) -> None:
    """The state machine goes on to its good end, which tells it."""
    async with running_fleet(tmp_path) as fleet:
        nodes = nodes_file(fleet, tmp_path / "nodes.toml")
        bar = ("--min-speedup", "999")
        done = await ran(words("bench", fleet.url, nodes, tmp_path / "work", *bar))
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["verdict"] == "below_bar"
    assert "999" in told["missed"][0]


@pytest.mark.usefixtures("buckets")
@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff"])
async def test_a_model_whose_config_is_none(text: bytes, tmp_path: Path) -> None:
    """Told in four parts."""
    key = f"{model_prefix(MODEL)}config.json"
    await asyncio.to_thread(boto3.client("s3").put_object, Bucket="models", Key=key, Body=text)
    async with running_fleet(tmp_path) as fleet:
        nodes = nodes_file(fleet, tmp_path / "nodes.toml")
        done = await ran(words("transport", fleet.url, nodes, tmp_path / "work"))
    assert done.exit_code == 2, done.output
    for part in ("config.json", "got:", "allowed:", "fix:"):
        assert part in done.output


@pytest.mark.usefixtures("buckets")
async def test_a_benchmark_that_is_too_slow_is_kept_and_marked(tmp_path: Path) -> None:
    """What was measured is uploaded; the step fails, so that the run does."""
    async with running_fleet(tmp_path, engine={"token_ms": 15.0}) as fleet:
        nodes = nodes_file(fleet, tmp_path / "nodes.toml")
        limit = ("--limit-s", "10")
        done = await ran(words("bench", fleet.url, nodes, tmp_path / "work", *limit))
    assert done.exit_code == 4, done.output
    assert "did not run to its end" in done.output
    assert "s3://results/runs/one/report.json" in done.output
    assert "runs/one/deployed/turns.jsonl" in uploaded()


@pytest.mark.usefixtures("buckets")
async def test_a_benchmark_without_a_turn_is_told(tmp_path: Path) -> None:
    """Not as a report that is missing."""
    async with running_fleet(tmp_path, engine={"token_ms": 100.0}) as fleet:
        nodes = nodes_file(fleet, tmp_path / "nodes.toml")
        limit = ("--limit-s", "10")
        done = await ran(words("bench", fleet.url, nodes, tmp_path / "work", *limit))
    assert done.exit_code == 4, done.output
    assert "no turn was measured in time" in done.output


@pytest.mark.usefixtures("buckets")
async def test_exactness_is_judged_from_the_turns_of_the_transport(tmp_path: Path) -> None:
    """No turn is played twice; without them there is nothing to judge."""
    work = tmp_path / "work"
    async with running_fleet(tmp_path) as fleet:
        nodes = nodes_file(fleet, tmp_path / "nodes.toml")
        early = await ran(words("exactness", fleet.url, nodes, work))
        assert early.exit_code == 2
        played = await ran(words("transport", fleet.url, nodes, work))
        # A mock's bytes are not those of a model: the proof looks at them.
        assert played.exit_code == 4
        assert "bytes were moved" in played.output
        judged = await ran(words("exactness", fleet.url, nodes, work))
    assert judged.exit_code == 0, judged.output
    assert json.loads(judged.stdout)["verdict"] == "equal"


@pytest.mark.usefixtures("buckets")
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("--url", f"http://{HOST}:9"), "router"),
        (("--profile", "none"), "profile none cannot be used"),
        (("--model", "mock/2"), "tokenizer.json of mock/2 cannot be read"),
        (("--api-keys-secret", "others"), "a secret cannot be read"),
        (("--run-id", "a b"), "this is no run's name"),
        (("--set", "kv.no_such=1"), "no_such"),
        (("--set", "kv.block_size_tokens=none"), "block_size_tokens"),
        (("--set", "kv.bidirectional=False"), "nothing to validate"),
    ],
)
def test_what_cannot_be_used_is_told(changed: tuple[str, str], said: str, tmp_path: Path) -> None:
    """With what, got, allowed and fix; nothing is uploaded."""
    nodes = tmp_path / "nodes.toml"
    nodes.write_text('[[prefill]]\nurl = "http://127.0.0.1:9"\n', "utf-8")
    done = CliRunner().invoke(
        app, words("transport", "http://127.0.0.1:9", nodes, tmp_path, *changed)
    )
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    for part in (said, "got:", "allowed:", "fix:"):
        assert part in done.output


@pytest.mark.parametrize("name", profile_names())
def test_a_sample_is_short_on_every_profile(name: str) -> None:
    """One request at a time, each one-way turn twice, within the engines' length."""
    sample = sample_of(load_profile(name))
    work = sample.workload
    assert (sample.bench.clients, sample.bench.again_share) == (1, 1.0)
    assert work.conversations * work.turns < 20
    longest = work.common_prefix_tokens + work.own_prefix_tokens + work.turns * 96
    assert longest <= sample.serving.max_model_len


def boot(root: Path, **fields: Any) -> None:
    """A node's boot.json."""
    file = Machine(root).at(BOOT_FILE)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"format": 1, "since_unix_s": 0, **fields}), "utf-8")


def asked(root: Path, timeout_s: int) -> Result:
    """`turnback job ready` of a node below a folder."""
    return CliRunner().invoke(
        app, ["job", "ready", "--root", str(root), "--timeout-s", str(timeout_s)]
    )


async def test_a_node_that_serves_is_ready(tmp_path: Path) -> None:
    """Its engine answers the health check."""
    write_tokenizer(tmp_path)
    async with running_fleet(tmp_path) as fleet:
        status = {"format": 1, "role": "prefill", "generation": "a"}
        file = Machine(tmp_path).at(STATUS_FILE)
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(status | {"url": url_of(fleet.prefills[0])}), "utf-8")
        done = await asyncio.to_thread(asked, tmp_path, 20)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"ready": True}


def test_a_boot_that_has_failed_for_good_is_told_in_its_own_words(tmp_path: Path) -> None:
    """Without waiting for the whole time."""
    told = {
        "what": "the model is not there",
        "got": "no manifest",
        "allowed": "one",
        "fix": "stage",
    }
    boot(tmp_path, state="failed", step="model", **told)
    done = asked(tmp_path, 2)
    assert done.exit_code == 3
    for part in told.values():
        assert part in done.output


def test_a_node_that_is_late_is_told_with_its_step(tmp_path: Path) -> None:
    """When time is up."""
    boot(tmp_path, state="booting", step="engine")
    done = asked(tmp_path, 1)
    assert done.exit_code == 3
    assert "boot is in step engine, booting" in done.output


def test_a_boot_that_is_tried_again_is_waited_for(tmp_path: Path) -> None:
    """A failure that does not stand for two minutes is none."""
    from runtime.cli_job import _wait

    looks: list[int] = []

    def is_ready() -> bool:
        looks.append(1)
        boot(tmp_path, state="failed" if len(looks) == 1 else "booting", step="model", what="no")
        return len(looks) > 3

    wait: Callable[..., None] = _wait
    wait(Machine(tmp_path).at(BOOT_FILE), is_ready, 5)
    assert len(looks) == 4
