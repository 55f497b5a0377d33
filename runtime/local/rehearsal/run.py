"""`turnback rehearse`: from an emulated account to engines that serve, and back."""

import asyncio
import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from runtime.aws.rollout.fleet import NodeRole
from runtime.contract.node import NodeSpec
from runtime.errors import StartFailed
from runtime.launch.supervisor import Supervisor
from runtime.local.checks import engine_versions, free_ports
from runtime.local.model import build_model
from runtime.local.rehearsal import account, bench, census, checks, deployed
from runtime.local.rehearsal.cdk_cli import CdkCli
from runtime.local.rehearsal.fleet import LocalFleet, Place

NAME = "rehearsal"
SETTINGS = {
    "name": NAME,
    "availability_zone": f"{account.REGION}b",
    "image.ami_id": "ami-00000000000000000",
}
"""What the committed deployment.toml leaves open."""
TTL = "kv.decoder_kv_blocks_ttl_s"
NEW_TTL_S = 600


@dataclass
class _Rehearsal:
    """What the steps share."""

    out: Path
    engine_python: Path
    console: Console
    cdk: CdkCli
    supervisor: Supervisor
    model: Path

    @contextmanager
    def step(self, what: str) -> Iterator[list[str]]:
        """Show that something goes on, then how long it took and what was found."""
        began = time.perf_counter()
        found: list[str] = []
        if not self.console.is_terminal:
            self.console.print(f"{what} ...")
        with self.console.status(what):
            yield found
        taken_s = time.perf_counter() - began
        told = f": {'; '.join(found)}" if found else ""
        self.console.print(f"{what}{told} [dim]({taken_s:.0f} s)[/dim]", highlight=False)


async def run_rehearsal(out: Path, engine_environment: Path, console: Console) -> None:
    """Deploy, serve, change, roll out, destroy.

    Raises:
        BadInput, StartFailed, EngineDied: as their names say.
    """
    folder = (out / "rehearsal").resolve()
    logs = folder / "logs"
    engine_versions(engine_environment)
    cdk = CdkCli(dict(SETTINGS), folder / "cdk.out", logs)
    model = build_model(out / "models").resolve()
    ports = list(free_ports(6))
    began = time.perf_counter()
    python = (engine_environment / "bin" / "python").absolute()
    with account.only_this_account(ports[0]):
        async with Supervisor() as supervisor:
            self = _Rehearsal(folder, python, console, cdk, supervisor, model)
            await supervisor.start([account.emulator(ports[0], logs / "emulator.log")])
            await _play(self, ports[1:])
    minutes = (time.perf_counter() - began) / 60
    console.print(f"the rehearsal holds, after {minutes:.1f} minutes; logs: {logs}")


async def _play(self: _Rehearsal, ports: list[int]) -> None:
    before = await _bootstrap(self)
    stacks = await _deploy(self)
    fleet = _fleet(self, ports)
    with self.step("start both engines and the router from what was deployed"):
        await fleet.start()
    await _serve(self, fleet, "first")
    identities = deployed.identities(NAME)
    await _change_ttl(self, stacks, identities)
    await _roll_out(self, fleet)
    await _serve(self, fleet, "second")
    await _destroy(self, before, stacks)


async def _bootstrap(self: _Rehearsal) -> census.Census:
    with self.step("cdk bootstrap"):
        await self.cdk.bootstrap()
    return await asyncio.to_thread(census.census)


async def _deploy(self: _Rehearsal) -> list[deployed.Stack]:
    with self.step("cdk deploy --all") as found:
        await self.cdk.deploy()
        stacks = await asyncio.to_thread(_checked_stacks)
        made = sum(len(stack.made) for stack in stacks)
        found.append(f"{len(stacks)} stacks, {made} resources")
        found.append(f"left out by the emulator: {', '.join(sorted(checks.SKIPPED))}")
    return stacks


def _checked_stacks() -> list[deployed.Stack]:
    """Everything that was deployed is there, whole, and refers to something."""
    stacks = deployed.read_stacks(NAME)
    types = {
        f"{stack.name}/{logical}": resource["Type"]
        for stack in stacks
        for logical, resource in stack.template.items()
    }
    made = {
        f"{stack.name}/{logical}": kind for stack in stacks for logical, kind in stack.made.items()
    }
    checks.check_skipped(types, made)
    census.check_covers(made.values())
    values: dict[str, object] = {stack.name: dict(stack.outputs) for stack in stacks}
    for role in deployed.ROLES:
        template = deployed.launch_template(NAME, role)
        name = f"turnback-{NAME}-{role}"
        checks.check_launch_template(name, _wanted_template(stacks, name), template)
        variables = deployed.boot_variables(template)
        _check_wheel(variables)
        text = deployed.parameter(variables["TURNBACK_PARAMETER"])
        values[variables["TURNBACK_PARAMETER"]] = (
            text.splitlines()
            if role == "router"
            else NodeSpec.model_validate_json(text).model_dump(mode="json", exclude_none=True)
        )
    checks.check_no_empty_values(values)
    return stacks


def _wanted_template(stacks: list[deployed.Stack], name: str) -> object:
    (data,) = (
        resource["Properties"]["LaunchTemplateData"]
        for stack in stacks
        for resource in stack.template.values()
        if resource.get("Properties", {}).get("LaunchTemplateName") == name
    )
    return data


def _check_wheel(variables: dict[str, str]) -> None:
    digest = hashlib.sha256(deployed.wheel(variables)).hexdigest()
    if digest != variables["TURNBACK_WHEEL_SHA256"]:
        raise StartFailed(
            "a node would refuse the kit's wheel",
            got=f"{variables['TURNBACK_WHEEL_URI']} with sha256 {digest}",
            allowed=variables["TURNBACK_WHEEL_SHA256"],
            fix="mend stacks/constructs/kit.py",
        )


def _fleet(self: _Rehearsal, ports: list[int]) -> LocalFleet:
    """Places of the nodes: each reads the parameter that its user data names."""
    free = iter(ports)
    places: dict[NodeRole, Place] = {}
    roles: tuple[NodeRole, ...] = ("prefill", "decode", "router")
    for role in roles:
        variables = deployed.boot_variables(deployed.launch_template(NAME, role))
        tags = deployed.group_tags(NAME, role)
        places[role] = Place(
            role,
            variables["TURNBACK_PARAMETER"],
            tags.get("turnback:generation", ""),
            next(free),
            0 if role == "router" else next(free),
        )
    return LocalFleet(
        places,
        self.engine_python,
        self.model,
        self.out,
        self.supervisor,
        asyncio.get_running_loop(),
    )


async def _serve(self: _Rehearsal, fleet: LocalFleet, run_id: str) -> None:
    spec = NodeSpec.model_validate_json(deployed.parameter(fleet.places["decode"].parameter))
    outputs = {key: each for s in deployed.read_stacks(NAME) for key, each in s.outputs.items()}
    key = bench.first_key(deployed.secret(outputs["ApiKeysSecret"]))
    with self.step("benchmark through the router") as found:
        found.append(
            await self.supervisor.run(
                bench.run_short_benchmark(
                    fleet.places["router"].url,
                    spec.serving.served_model_name,
                    self.model,
                    key,
                    self.out,
                    f"{run_id}-{int(time.time())}",
                    lambda _: None,
                )
            )
        )


async def _change_ttl(
    self: _Rehearsal, stacks: list[deployed.Stack], identities: dict[str, object]
) -> None:
    with self.step(f"cdk deploy with {TTL}={NEW_TTL_S}") as found:
        await self.cdk.deploy("deploy-ttl", {TTL: str(NEW_TTL_S)})
        after = await asyncio.to_thread(_checked_stacks)
        changed = [
            (logical, kind)
            for one, other in zip(stacks, after, strict=True)
            for logical, kind in checks.changed_resources(one.template, other.template).items()
        ]
        now = deployed.identities(NAME)
        if {kind for _, kind in changed} != {"AWS::SSM::Parameter"} or now != identities:
            raise StartFailed(
                "a new TTL changes more than parameters",
                got=f"changed: {changed}; {now}",
                allowed=f"SSM parameters; {identities}",
                fix="find what depends on the TTL in stacks/",
            )
        found.append(f"{len(changed)} parameters changed, nothing replaced")


async def _roll_out(self: _Rehearsal, fleet: LocalFleet) -> None:
    with self.step("rollout") as found:
        report = await fleet.roll_out(lambda line: self.console.print(f"  {line}"))
        found.append(f"restarted {', '.join(report.restarted)}")
        for role, word in _TTL_WORDS.items():
            line = " ".join(fleet.command_line(role))
            if word not in line:
                raise StartFailed(
                    f"the {role} process does not run with the new TTL",
                    got=line,
                    allowed=f"a command line with {word}",
                    fix=f"read {fleet.logs(role)}",
                )
        found.append(f"all three run with a TTL of {NEW_TTL_S} s")


_TTL_WORDS: dict[NodeRole, str] = {
    "prefill": f'"decoder_kv_blocks_ttl":{NEW_TTL_S},',
    "decode": f'"decoder_kv_blocks_ttl":{NEW_TTL_S},',
    "router": f"--decoder-kv-blocks-ttl-s {NEW_TTL_S} ",
}
"""What the kernel shows of each process."""


async def _destroy(self: _Rehearsal, before: census.Census, stacks: list[deployed.Stack]) -> None:
    retained: dict[str, int] = {}
    for stack in stacks:
        for resource in stack.template.values():
            if resource.get("DeletionPolicy") == "Retain":
                retained[resource["Type"]] = retained.get(resource["Type"], 0) + 1
    with self.step("cdk destroy --all") as found:
        await self.cdk.destroy()
        after = await asyncio.to_thread(census.census)
        census.check_nothing_left(before, after, retained)
        found.append(f"nothing left but what is retained: {retained}")
