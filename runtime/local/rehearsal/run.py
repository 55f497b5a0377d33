"""`turnback rehearse`: from an emulated account to engines that serve, and back."""

import asyncio
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console

from runtime.aws.rollout.fleet import ENGINE_ROLES, NodeRole
from runtime.bench.player import Target
from runtime.cli_node import stage_deployed
from runtime.errors import StartFailed
from runtime.launch.supervisor import Supervisor
from runtime.local.checks import engine_versions, free_ports
from runtime.local.model import build_model
from runtime.local.rehearsal import account, bench, census, checks, deployed, inspection, validation
from runtime.local.rehearsal.cdk_cli import CdkCli
from runtime.local.rehearsal.deployed import Stack
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
_GRACE_S = 20.0


async def run_rehearsal(out: Path, engine_environment: Path, console: Console) -> None:
    """Deploy, serve, change, roll out, destroy.

    Raises:
        BadInput, StartFailed, EngineDied: as their names say.
    """
    began = time.perf_counter()
    folder = out / "rehearsal"
    if folder.exists():
        shutil.rmtree(folder)
    engine_versions(engine_environment)
    cdk = CdkCli(dict(SETTINGS), (folder / "cdk.out").resolve(), folder / "logs")
    model = build_model(out / "models").resolve()
    port, *ports = free_ports(6)
    python = (engine_environment / "bin" / "python").absolute()
    with account.only_this_account(port):
        # A node's boot ends its engine first.
        async with Supervisor(grace_s=_GRACE_S) as supervisor:
            emulator = account.emulator(port, folder / "logs" / "emulator.log")
            await supervisor.start([emulator])
            rehearsal = _Rehearsal(folder, console, cdk, supervisor, python, model, ports)
            try:
                await rehearsal.play()
            except (BotoCoreError, ClientError) as error:
                raise StartFailed(
                    "the emulated account does not answer as AWS would",
                    got=str(error),
                    allowed="an answer",
                    fix=f"read {emulator.log}",
                ) from error
    minutes = (time.perf_counter() - began) / 60
    console.print(f"the rehearsal holds, after {minutes:.1f} minutes\nlogs: {folder / 'logs'}")


@dataclass
class _Rehearsal:
    """The steps, and what they share."""

    out: Path
    console: Console
    cdk: CdkCli
    supervisor: Supervisor
    engine_python: Path
    model: Path
    ports: Sequence[int]

    async def play(self) -> None:
        """All steps; each needs the ones before."""
        before = await self._bootstrap()
        stacks = await self._deploy()
        fleet = await self._fleet()
        await self._stage()
        await self._start(fleet)
        await self._serve(fleet, "deployed")
        await self._validate(fleet)
        await self._change_ttl(stacks)
        await self._roll_out(fleet)
        await self._serve(fleet, "rolled-out")
        await self._destroy(before, stacks)

    @contextmanager
    def _step(self, what: str) -> Iterator[list[str]]:
        """Show that something goes on; then how long it took, and what the list has got."""
        began = time.perf_counter()
        found: list[str] = []
        if not self.console.is_terminal:
            self._say(f"{what} ...")
        try:
            with self.console.status(what):
                yield found
        except asyncio.CancelledError:
            self._say(
                f"interrupted in: {what}. The emulated account has ended, nothing of it is left "
                f"to destroy; logs: {self.out / 'logs'}; run it again when you like"
            )
            raise
        told = f": {'; '.join(found)}" if found else ""
        self._say(f"{what}{told} ({time.perf_counter() - began:.0f} s)")

    def _say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True, markup=False, highlight=False)

    async def _bootstrap(self) -> census.Census:
        with self._step("cdk bootstrap"):
            await self.cdk.bootstrap()
            return await asyncio.to_thread(census.census)

    async def _deploy(self) -> list[Stack]:
        with self._step("cdk deploy --all") as found:
            await self.cdk.deploy()
            stacks = await asyncio.to_thread(inspection.checked_stacks, NAME)
            found.append(f"{sum(len(stack.made) for stack in stacks)} resources")
            found.append(f"left out by the emulator: {', '.join(sorted(checks.SKIPPED))}")
        return stacks

    async def _fleet(self) -> LocalFleet:
        """Each node reads the parameter that its launch template's user data names."""
        places = await asyncio.to_thread(self._places)
        return LocalFleet(
            NAME,
            places,
            self.engine_python,
            self.out,
            self.supervisor,
            asyncio.get_running_loop(),
        )

    def _places(self) -> dict[NodeRole, Place]:
        free = iter(self.ports)
        places: dict[NodeRole, Place] = {}
        for role in deployed.ROLES:
            variables = deployed.boot_variables(deployed.launch_template(NAME, role))
            pairing = deployed.group_tags(NAME, role).get("turnback:generation", "")
            side_channel_port = 0 if role == "router" else next(free)
            places[role] = Place(role, variables, pairing, next(free), side_channel_port)
        return places

    async def _stage(self) -> None:
        """The tiny model, in the place of the deployed one, as `turnback model stage` does it."""
        with self._step("model stage") as found:
            lines: list[str] = []
            await asyncio.to_thread(stage_deployed, NAME, self.model, lines.append)
            found.append(lines[-1])

    async def _start(self, fleet: LocalFleet) -> None:
        with self._step("boot of both nodes, and the router, from what was deployed") as found:
            await fleet.start()
            found.append(fleet.boots())
            parameter = fleet.places["decode"].parameter
            decode = await asyncio.to_thread(deployed.node_spec, parameter)
            fleet.check_ttl(decode.kv.decoder_kv_blocks_ttl_s)

    async def _serve(self, fleet: LocalFleet, run_id: str) -> None:
        target = await asyncio.to_thread(self._target, fleet, run_id)
        with self._step("benchmark through the router") as found:
            turns = self.out / f"turns-{run_id}.jsonl"
            judging = bench.run_and_judge(target, self.model, turns)
            found.append(await self.supervisor.run(judging))

    def _target(self, fleet: LocalFleet, run_id: str) -> Target:
        outputs = {key: each for s in deployed.read_stacks(NAME) for key, each in s.outputs.items()}
        key = bench.first_key(deployed.secret(outputs["ApiKeysSecret"]))
        spec = deployed.node_spec(fleet.places["decode"].parameter)
        url = fleet.places["router"].url
        return Target(url, spec.serving.served_model_name, run_id, api_key=key)

    async def _validate(self, fleet: LocalFleet) -> None:
        """What a deploy starts by itself, command by command, on the local pair."""
        definition = await asyncio.to_thread(validation.deployed_definition, NAME)
        given = {"$.run_id": NAME, "$.input.min_speedup": "0", "$.input.slo_ttft_p90_ms": "0"}
        commands = validation.commands(definition, given)
        spots = {role: self._spot(fleet, role) for role in deployed.ROLES}
        for spot in spots.values():
            await asyncio.to_thread(validation.write_environment, spot)

        async def run(step: str, role: NodeRole) -> validation.Ran:
            command = validation.local_command(commands[step], spots[role])
            log = self.out / "validation" / f"{step}-{role}"
            return await self.supervisor.run(validation.run(command, log))

        with self._step("the validation's commands, from the deployed state machine") as found:
            for role in ENGINE_ROLES:
                validation.answer("Ready", await run("Ready", role))
                passed = validation.judge_doctor(await run("Doctor", role), role)
                found.append(f"{passed} checks of the {role} node's doctor pass")
            told = {
                step: validation.answer(step, await run(step, "router"))
                for step in ("Transport", "Exactness", "Benchmark")
            }
            found.append(await asyncio.to_thread(validation.judge, told))

    def _spot(self, fleet: LocalFleet, role: NodeRole) -> validation.Spot:
        return validation.Spot(
            root=fleet.root(role),
            variables=fleet.places[role].variables,
            url=fleet.places["router"].url,
            nodes_file=fleet.nodes_file().absolute(),
            work=(self.out / "validation").absolute(),
        )

    async def _change_ttl(self, stacks: Sequence[Stack]) -> None:
        was = await asyncio.to_thread(deployed.identities, NAME)
        with self._step(f"cdk deploy with {TTL}={NEW_TTL_S}") as found:
            await self.cdk.deploy("deploy-ttl", {TTL: str(NEW_TTL_S)})
            after = await asyncio.to_thread(inspection.checked_stacks, NAME)
            now = await asyncio.to_thread(deployed.identities, NAME)
            changed = inspection.check_only_parameters_changed(stacks, after, was, now)
            found.append(f"{changed} parameters changed, nothing replaced")

    async def _roll_out(self, fleet: LocalFleet) -> None:
        with self._step("rollout") as found:
            report = await fleet.roll_out(lambda line: self._say(f"  {line}"))
            fleet.check_ttl(NEW_TTL_S)
            found.append(f"restarted {', '.join(report.restarted)}")
            found.append(f"their command lines have {NEW_TTL_S} s")

    async def _destroy(self, before: census.Census, stacks: Sequence[Stack]) -> None:
        retained = inspection.retained(stacks)
        with self._step("cdk destroy --all") as found:
            await self.cdk.destroy()
            after = await asyncio.to_thread(census.census)
            census.check_nothing_left(before, after, retained)
            kept = ", ".join(f"{count} {kind}" for kind, count in retained.items())
            found.append(f"nothing left but what the templates retain, {kept}")
