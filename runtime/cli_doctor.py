"""`turnback doctor`: of this node, or of every node of a deployment."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runtime.cli_aws import COLOURS, JsonOption, edge
from runtime.contract.doctor import DoctorFinding, DoctorReport, Stage
from runtime.contract.image import IMAGE_FILE
from runtime.contract.status import NODE_ENVIRONMENT
from runtime.errors import BadInput, StartFailed

if TYPE_CHECKING:
    from runtime.aws.fleet_doctor import NodeAnswer
    from runtime.launch.doctor.check import Facts
    from runtime.launch.machine import Machine

FAILED, UNANSWERED = 1, StartFailed.exit_code


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(
    name: Annotated[
        str, typer.Argument(help="A deployment: all its nodes. Left out: this node.")
    ] = "",
    *,
    stage: Annotated[
        Stage | None, typer.Option(help="Left out: live where an engine was started, else boot.")
    ] = None,
    window_s: Annotated[
        float | None,
        typer.Option(min=5, max=600, help="Watch traffic for so long. Left out: totals."),
    ] = None,
    window_at: Annotated[
        float | None, typer.Option(min=0, help="Of a node: when the window begins (Unix time).")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="Of a node: HOST:PORT of another's side channel; repeatable."),
    ] = None,
    spec: Annotated[
        Path | None, typer.Option(help="Of a node: a NodeSpec in place of its parameter's.")
    ] = None,
    region: Annotated[str, typer.Option(help="Of a deployment; left out: the environment's.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Ask a node, or all nodes of a deployment, whether they can serve; tell why not."""
    given = {"--window-at": window_at, "--peer": peer, "--spec": spec}
    if window_s is not None and stage in ("image", "boot"):
        raise typer.BadParameter(f"--window-s is of stage live, not of {stage}")
    stage = "live" if window_s is not None else stage
    with _edge():
        if name:
            _refuse_of_node([flag for flag, value in given.items() if value])
            code = _fleet(name, stage, window_s, region, as_json=as_json)
        else:
            if window_at is not None and window_s is None:
                raise typer.BadParameter("--window-at wants --window-s")
            facts = _facts(this_machine(), stage, spec)
            code = _node(_with(facts, peer or (), window_s, window_at), as_json=as_json)
    raise typer.Exit(code)


@contextmanager
def _edge() -> Iterator[None]:
    """As of every command; where AWS does not let the nodes be asked, nothing is known of them."""
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        InvalidRegionError,
        NoCredentialsError,
        NoRegionError,
        PartialCredentialsError,
        ProfileNotFound,
    )

    with edge("interrupted; nothing was changed"):
        try:
            yield
        except (
            *(NoRegionError, InvalidRegionError, ProfileNotFound),
            *(NoCredentialsError, PartialCredentialsError),
        ):
            raise
        except (BotoCoreError, ClientError) as error:
            raise StartFailed(
                "AWS does not let the nodes be asked",
                got=str(error),
                allowed="ec2:DescribeInstances, ssm:SendCommand, ssm:GetCommandInvocation, "
                "ssm:DescribeInstanceInformation, ssm:GetParameter",
                fix="set credentials that may do this; ask again where AWS was late",
            ) from error


def _refuse_of_node(flags: Sequence[str]) -> None:
    if flags:
        raise typer.BadParameter(f"{', '.join(flags)}: of a node, not of a deployment")


def this_machine() -> "Machine":
    """The real one."""
    from runtime.launch.machine import Machine

    return Machine()


def _facts(machine: "Machine", stage: Stage | None, spec: Path | None) -> "Facts":
    from runtime.launch.doctor.facts import gather, is_node, likely_stage, node_environment

    if spec is None and not is_node(machine):
        raise BadInput(
            "this machine is no node",
            got=f"neither {IMAGE_FILE} nor {NODE_ENVIRONMENT}",
            allowed="a node of a deployment, or an image of this kit",
            fix="name the deployment: turnback doctor NAME",
        )

    def read() -> str:
        if spec is not None:
            return _text(spec)
        environment = node_environment(machine)
        parameter = environment.get("TURNBACK_PARAMETER", "")
        if not parameter:
            raise BadInput(
                "the node's parameter is not known",
                got=f"no TURNBACK_PARAMETER in {NODE_ENVIRONMENT}",
                allowed="what user data writes there",
                fix="see /var/log/cloud-init-output.log",
            )
        from runtime.aws.parameter import brief_parameter_text

        return brief_parameter_text(parameter, environment.get("AWS_REGION", ""))

    if spec is not None:
        _text(spec)
    return gather(machine, stage or likely_stage(machine), read)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            "the spec cannot be read", got=str(error), allowed="a file", fix="give another --spec"
        ) from error


def _with(
    facts: "Facts", peers: Sequence[str], window_s: float | None, window_at: float | None
) -> "Facts":
    from runtime.launch.doctor.check import Window

    window = None if window_s is None else Window(window_s, window_at)
    return replace(facts, peers=tuple(map(_peer, peers)), window=window)


def _peer(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65_535:
        raise typer.BadParameter(f"--peer {text}: must be HOST:PORT, the port in 1..65535")
    return host.strip("[]"), int(port)


def _node(facts: "Facts", *, as_json: bool) -> int:
    from runtime.launch.doctor.run import run_doctor

    report = run_doctor(facts)
    if as_json:
        typer.echo(report.model_dump_json())
    else:
        _print_node(report)
    return FAILED if report.worst == "fail" else 0


def _fleet(
    name: str, stage: Stage | None, window_s: float | None, region: str, *, as_json: bool
) -> int:
    from runtime.aws.clients import client
    from runtime.aws.fleet_doctor import Question, ask_fleet
    from runtime.aws.run_command import RunCommand
    from runtime.launch.doctor.fleet import fleet_findings

    ssm = client("ssm", region)
    question = Question(stage, window_s)
    answers = ask_fleet(
        *(name, client("ec2", region), ssm, RunCommand(ssm)),
        question,
        lambda line: typer.echo(line, err=True),
    )
    findings = fleet_findings({each.instance: each.report for each in answers})
    code = fleet_code(answers, findings)
    if as_json:
        typer.echo(json.dumps(_fleet_json(name, answers, findings, code)))
    else:
        _print_fleet(name, answers, findings)
    return code


def fleet_code(answers: "Sequence[NodeAnswer]", findings: Sequence[DoctorFinding]) -> int:
    """The exit code: the worst of all nodes, one that could not be asked being the worst."""
    if any(each.report is None for each in answers):
        return UNANSWERED
    statuses = [each.status for each in findings]
    statuses += [each.report.worst for each in answers if each.report is not None]
    return FAILED if "fail" in statuses else 0


def _fleet_json(
    name: str, answers: "Sequence[NodeAnswer]", findings: Sequence[DoctorFinding], code: int
) -> dict[str, Any]:
    return {
        "format": 1,
        "deployment": name,
        "exit_code": code,
        "nodes": [
            {
                "instance": each.instance,
                "role": each.role,
                "problem": each.problem,
                "report": each.report and each.report.model_dump(mode="json"),
            }
            for each in answers
        ],
        "findings": [each.model_dump(mode="json") for each in findings],
    }


def _shown(status: str) -> str:
    return f"[{COLOURS[status]}]{status}[/{COLOURS[status]}]"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", show_lines=True)
    for column in columns:
        # An instance's id is there to be copied.
        table.add_column(column, overflow="fold", no_wrap=column == "node")
    return table


def _named(check: str) -> str:
    """A check's id, and below it what is asked; an older or newer node's may be unknown."""
    from runtime.launch.doctor.checks import CHECKS
    from runtime.launch.doctor.fleet import FLEET_CHECKS

    titles = {each.name: each.title for each in CHECKS} | dict(FLEET_CHECKS)
    return f"{check}\n[dim]{escape(titles.get(check, ''))}[/dim]"


def _print_node(report: DoctorReport) -> None:
    title = f"doctor, stage {report.stage}, {report.took_s:.1f} s"
    table = _table(title, "check", "", "evidence", "fix")
    for each in report.findings:
        row = (_named(each.check), _shown(each.status), escape(each.evidence), escape(each.fix))
        table.add_row(*row)
    Console().print(table)


def _print_fleet(
    name: str, answers: "Sequence[NodeAnswer]", findings: Sequence[DoctorFinding]
) -> None:
    """One row a node that is good, one a finding of those that are not."""
    table = _table(f"doctor of {name}", "node", "role", "check", "", "evidence", "fix")
    for answer in answers:
        node = (answer.instance, answer.role)
        if answer.report is None:
            asked = "see its SSM agent and the instance's log"
            table.add_row(*node, "", _shown("fail"), escape(answer.problem), asked)
            continue
        others = [each for each in answer.report.findings if each.status != "pass"]
        good = len(answer.report.findings) - len(others)
        table.add_row(*node, "", _shown("pass"), f"{good} checks", "")
        for each in others:
            told = (escape(each.evidence), escape(each.fix))
            table.add_row(*node, _named(each.check), _shown(each.status), *told)
    for each in findings:
        told = (escape(each.evidence), escape(each.fix))
        table.add_row("all", "", _named(each.check), _shown(each.status), *told)
    Console().print(table)
