"""The share's loop over one OSS."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from bursar.errors import BursarError, FormatError, UsageError
from bursar.integrations.lustre.formats import (
    OLD_RATE_MAX,
    PREFIX,
    JobStats,
    count_partitions,
    find_rate_max,
    find_running,
    name_rule,
    parse_job_stats,
    parse_rules,
    write_change,
    write_start,
    write_stop,
)
from bursar.integrations.lustre.jobs import JobNodes
from bursar.shares.handout import Handout
from bursar.shares.target import Seen

OUTPUT_MAX_BYTES = 64 * 1024 * 1024
TIMEOUT_S = 10.0
BATCH = 32
"""Parameters set by one run of lctl."""

CHANGE_PART = 0.03
STATS = "obdfilter.*.job_stats"
RULES = "ost.OSS.ost_io.nrs_tbf_rule"
POLICIES = "ost.OSS.ost_io.nrs_policies"
WANTED = "tbf jobid"
FALLBACK = "fifo"
"""What schedules where nobody chose anything."""


class Lctl:
    """Runs `lctl`: bounded in time and output, and never through a shell."""

    def __init__(self, command: Sequence[str] = ("lctl",)) -> None:
        self._command = tuple(command)

    async def get(self, parameter: str) -> str:
        return await self._run("get_param", "-n", parameter)

    async def set(self, parameter: str, values: Sequence[str]) -> None:
        for first in range(0, len(values), BATCH):
            pairs = [f"{parameter}={value}" for value in values[first : first + BATCH]]
            await self._run("set_param", *pairs)

    async def _run(self, *arguments: str) -> str:
        shown = " ".join(arguments)[:120]
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                *arguments,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise BursarError(
                f"{self._command[0]} cannot be run: {error.strerror}; is this an OSS?"
            ) from error
        try:
            async with asyncio.timeout(TIMEOUT_S):
                output, errors = await process.communicate()
        except TimeoutError as error:
            process.kill()
            await process.wait()
            raise BursarError(f"lctl {shown} took more than {TIMEOUT_S:g} s") from error
        if process.returncode != 0:
            said = errors.decode("utf-8", "replace").strip()[:300]
            raise BursarError(f"lctl {shown} failed ({process.returncode}): {said}")
        if len(output) > OUTPUT_MAX_BYTES:
            raise FormatError(
                f"lctl {shown} printed {len(output)} bytes; clear job_stats, it has too many jobs"
            )
        return output.decode("utf-8", "replace")


class LustreEnforcer:
    """Implements `bursar.shares.target.Enforcer` for one OSS.

    Usage is the difference of two readings: clearing the statistics, as the paper does, would lose
    what is counted between the reading and the clearing, and disturb whoever else reads them."""

    def __init__(self, lctl: Lctl, kept: Path, jobs: JobNodes | None = None) -> None:
        """`kept`: where it is written down which policy was replaced, for whoever has to give it back;
        `jobs`: who knows how many nodes each job runs on."""
        self._jobs = jobs
        self._lctl = lctl
        self._kept = kept
        self._rate_max = OLD_RATE_MAX
        self._counts: dict[str, JobStats] | None = None
        self._rates: dict[str, int] = {}
        self._weights: dict[str, int] = {}
        self._partitions: int | None = None

    async def open(self) -> None:
        """Stop the rules of an earlier life, and let TBF schedule by job id. Raises UsageError where a
        policy runs that somebody chose: it is not replaced."""
        partitions = count_partitions(await self._lctl.get("cpu_partition_table"))
        self._rate_max = find_rate_max(await self._lctl.get("version"))
        running = find_running(await self._lctl.get(POLICIES))
        if running == FALLBACK:
            self._kept.write_text(running)  # before it is replaced
            await self._lctl.set(POLICIES, [WANTED])
        elif running not in (WANTED, "tbf"):
            raise UsageError(
                f"this OSS schedules by {running!r}, which bursar does not replace; to have jobs shared set "
                f'{POLICIES}="{WANTED}", or "{FALLBACK}"'
            )
        await self._stop_all()
        self._partitions = partitions

    async def collect(self) -> Seen:
        if self._partitions is None:
            await self.open()
        now = parse_job_stats(await self._lctl.get(STATS))
        before, self._counts = self._counts, now
        if before is None:
            return Seen(served={})
        served: dict[str, int] = {}
        problems: list[str] = []
        for job, counts in now.items():
            used = counts.requests - before.get(job, JobStats()).requests
            if used < 0:
                problems.append(f"job {job!r}: its counters went backwards; left out of this interval")
            elif used:
                served[job] = used
        sizes = await self._find_sizes(problems)
        return Seen(served=served, problems=tuple(problems), sizes=sizes)

    async def _find_sizes(self, problems: list[str]) -> Mapping[str, int] | None:
        if self._jobs is None:
            return None
        try:
            return await self._jobs.look()
        except BursarError as error:
            problems.append(str(error))
            return self._jobs.known

    async def apply(self, handout: Handout) -> None:
        if self._partitions is None:
            raise BursarError("open() comes before the first interval: it counts the CPU partitions")
        commands, rates, weights, problems = self._plan(handout)
        try:
            await self._lctl.set(RULES, commands)
        except BursarError:
            await self._read_back()
            raise
        self._rates, self._weights = rates, weights
        if problems:
            raise UsageError("; ".join(problems))

    def _plan(self, handout: Handout) -> tuple[list[str], dict[str, int], dict[str, int], list[str]]:
        """The commands that turn the present rules into the handout's: the heavier tenant's rule
        stands before the lighter one's."""
        rates, weights = dict(self._rates), dict(self._weights)
        commands, problems = [], []
        for tenant in [tenant for tenant in rates if tenant not in handout.lines]:
            commands.append(write_stop(name_rule(tenant)))
            del rates[tenant]
            weights.pop(tenant, None)
        for tenant, line in handout.lines.items():
            rate = self._divide(line.rate)
            old = rates.get(tenant)
            before = self._lighter(tenant, line.weight, weights)
            try:
                if old is None:
                    commands.append(write_start(name_rule(tenant), tenant, rate, before))
                elif weights.get(tenant) != line.weight:
                    commands.append(write_change(name_rule(tenant), rate, before))
                elif abs(old - rate) > CHANGE_PART * max(old, rate):
                    commands.append(write_change(name_rule(tenant), rate))
                else:
                    continue
            except UsageError as error:
                problems.append(str(error))
                continue
            rates[tenant], weights[tenant] = rate, line.weight
        return commands, rates, weights, problems

    def _divide(self, rate: int) -> int:
        assert self._partitions is not None, "counted when it was opened"
        return min(self._rate_max, max(1, rate // self._partitions))

    @staticmethod
    def _lighter(tenant: str, weight: int, weights: dict[str, int]) -> str | None:
        """The heaviest of the lighter tenants' rules: a new one goes in front of it. Without any,
        it goes in front of Lustre's own default rule, which stands last."""
        lighter = [name for name in weights if weights[name] < weight and name != tenant]
        if lighter:
            return name_rule(max(lighter, key=lambda name: weights[name]))
        return "default" if weights else None

    async def _read_back(self) -> None:
        """After a failure: what rules there really are. Those of tenants unknown are stopped."""
        names = await self._rule_names()
        known = {name_rule(tenant): tenant for tenant in self._rates}
        self._rates = {known[name]: self._rates[known[name]] for name in names if name in known}
        self._weights = {tenant: self._weights[tenant] for tenant in self._rates if tenant in self._weights}
        strangers = [write_stop(name) for name in names if name not in known]
        await self._lctl.set(RULES, strangers)

    async def _rule_names(self) -> list[str]:
        partitions = parse_rules(await self._lctl.get(RULES))
        names = {rule.name: None for rules in partitions.values() for rule in rules}
        return [name for name in names if name.startswith(PREFIX)]

    async def _stop_all(self) -> None:
        await self._lctl.set(RULES, [write_stop(name) for name in await self._rule_names()])
        self._rates.clear()
        self._weights.clear()

    async def release(self) -> None:
        """Stop bursar's rules, and give back the policy that was there before this life or an earlier one."""
        if self._partitions is None:
            return  # it was never opened
        await self._stop_all()
        if not self._kept.exists():
            return
        if find_running(await self._lctl.get(POLICIES)) == WANTED:  # else somebody has chosen since
            await self._lctl.set(POLICIES, [self._kept.read_text()])
        self._kept.unlink()
