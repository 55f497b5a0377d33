"""Colours of the charts and the page, as CSS variables for light and for dark.

Source:
    Okabe and Ito, Color Universal Design: told apart with every kind of colour vision.
    Arms and stages also differ in line, marker or hatch, so that none is read by colour.
"""

from dataclasses import dataclass

from runtime.bench.turn import Arm


@dataclass(frozen=True)
class Tone:
    """One colour.

    Attributes:
        stand_in: what matplotlib draws with; it becomes `var(--name)`.
        light, dark: its value on a light and on a dark page.
    """

    name: str
    stand_in: str
    light: str
    dark: str


INK = Tone("ink", "#0a0b01", "#16202c", "#e8ecf1")
MUTED = Tone("muted", "#0a0b02", "#4a5563", "#aeb8c4")
LINE = Tone("line", "#0a0b03", "#cfd6de", "#3a4552")
PAGE = Tone("page", "#0a0b04", "#ffffff", "#12171e")
ONE_WAY = Tone("one-way", "#0a0b05", "#c44f00", "#e69f00")
BIDIRECTIONAL = Tone("bidirectional", "#0a0b06", "#0072b2", "#56b4e9")
QUEUE = Tone("queue", "#0a0b07", "#999999", "#8a8f96")
PULL = Tone("pull", "#0a0b08", "#56b4e9", "#3f93c4")
PREFILL = Tone("prefill", "#0a0b09", "#e69f00", "#c98a00")
HAND_OVER = Tone("hand-over", "#0a0b0a", "#cc79a7", "#b8658f")
FIRST_DECODE = Tone("first-decode", "#0a0b0b", "#009e73", "#1fa67c")
DECODE = Tone("decode", "#0a0b0c", "#b8e0d2", "#1f4f42")
THINK = Tone("think", "#0a0b0d", "#eef1f5", "#232c37")

TONES = (
    *(INK, MUTED, LINE, PAGE, ONE_WAY, BIDIRECTIONAL),
    *(QUEUE, PULL, PREFILL, HAND_OVER, FIRST_DECODE, DECODE, THINK),
)


@dataclass(frozen=True)
class ArmLook:
    """How an arm is told from the other, with and without colour."""

    label: str
    tone: Tone
    marker: str
    line: str
    hatch: str


ARM_LOOKS: dict[Arm, ArmLook] = {
    "one_way": ArmLook("one-way", ONE_WAY, "o", "--", "////"),
    "bidirectional": ArmLook("bidirectional", BIDIRECTIONAL, "^", "-", ""),
}


@dataclass(frozen=True)
class PartLook:
    """How a part of a turn's time looks."""

    label: str
    tone: Tone
    hatch: str


STAGES: dict[str, PartLook] = {
    "queue": PartLook("queue", QUEUE, ""),
    "pull": PartLook("pull", PULL, "\\\\\\"),
    "prefill": PartLook("prefill", PREFILL, ""),
    "hand_over": PartLook("hand-over", HAND_OVER, "xxx"),
    "first_decode": PartLook("first decode", FIRST_DECODE, "+++"),
    "unattributed": PartLook("unattributed", PAGE, "---"),
}
"""In the order of time; they add up to TTFT."""

PARTS: dict[str, PartLook] = {
    "think": PartLook("think", THINK, ""),
    **STAGES,
    "decode": PartLook("decode", DECODE, ""),
}


def variables(*, is_dark: bool) -> str:
    """The CSS declarations of all tones."""
    return "".join(f"--{tone.name}:{tone.dark if is_dark else tone.light};" for tone in TONES)
