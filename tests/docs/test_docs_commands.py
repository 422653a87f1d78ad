"""Every command in README.md, CONTRIBUTING.md and docs/ is run, in a folder that holds stand-ins for the reader's own files.

Commands of `maitred` and scripts of bench/ run in this process, with smaller numbers where that only saves time (`SMALLER`).
Servers are processes (`forking`), which are stopped by Ctrl-C when they are ready. What is not run here is in `ELSEWHERE`, each
with its reason. A command that is new to the documents runs as it stands, or says here why not.
"""

from __future__ import annotations

import gzip
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_text import PAGES, ROOT, blocks, commands
from forking import Forking

from maitred.cli import main

VECTORS = ROOT / "tests" / "vectors"
ALL = list(dict.fromkeys(command for page in PAGES for command in commands(page)))

ELSEWHERE = {
    r"(?s)maitred (scheduler|serve) .*--link-secret-file .*": "they need one another; tests/gateway/test_cluster.py has both",
    r"curl -s localhost:(8082|7071)/.*": "they ask the same",
    r"maitred scheduler .*--ext-proc .*": "it waits for an Envoy; tests/gateway/test_envoy.py has both",
    r"maitred serve .*--data-plane envoy.*": "it needs the wheel of Envoy; tests/gateway/test_envoy_pickers.py starts it",
    r"maitred (verify|why|replay) .*": "it needs a log; tests/replay and tests/study/what_if run each",
    r"python bench/tune\.py .*": "it needs a trace of Azure's, and takes a quarter of an hour",
    r"maitred tune .*": "it needs a log and a record; tests/study/tune runs it",
    r"maitred envoy-config .*": "tests/cli/test_envoy_commands.py prints such configurations",
    r"curl -s localhost:8080/v1/chat/completions .*\"hi\".*": "it asks an Envoy; tests/gateway/test_envoy.py does",
    r"\.ci/run": "it is what runs this test",
    r"make (test|check|format|docs|site|bench|compile|test-compiled|vllm-test|stress|world|run)\b.*": "a target of the "
    "Makefile; CI runs check, test, compile and test-compiled, tests/demo runs what run does, tests/stress what stress does, "
    "tests/testing plays worlds, and tests/docs/test_site.py holds the site together",
    r"(MAITRED_COMPILE=1 )?pip install .*": "it would change the environment of the tests; .ci/run installs the project",
    r"python -m tests\.conformance .*": "tests/conformance runs the same cases by the same runners",
    r"python -m venv /opt/maitred": "it writes where only root may",
    r"systemctl .*": "it needs systemd as process 1; tests/deploy/test_systemd_units.py asks systemd-analyze",
    r"python tools/chart\.py --check": "it needs Helm; tests/deploy/test_chart.py runs it where it is",
    r"python tools/container\.py .*": "it builds an image for minutes; tests/deploy/test_containers.py reads the files",
    r"(helm|kubectl) .*": "they need a cluster; tests/deploy/test_chart.py holds what Helm renders against Kubernetes' schemas",
    r"(podman|docker) .*": "they need a registry of images; tools/container.py builds the image without one",
    r"python tools/release\.py .*": "it fetches packages; tests/docs/test_site.py asks it for the number",
    r"python -m sglang\.launch_server .*": "it needs SGLang and a GPU",
    r"maitred serve --config examples/engines/(sglang|tensorrt-llm)\.yaml": "that of vllm.yaml is run; all are checked",
    r"maitred engine --port 9002 .*": "it is the command before with another port",
    r"curl -s localhost:8080/(maitred/state|metrics)": "tests/gateway ask for these pages",
    r"curl -s localhost:8080/v1/chat/completions -H .*": "it asks the gateway that was started before; tests/gateway do",
    r"curl -s localhost:8080/ready": "it asks what runs in a cluster; tests/gateway/test_gateway_health.py asks a gateway",
    r"promtool .*": "tests/deploy/test_alerts.py runs it where it is installed",
    r"maitred calibrate --alpha-only .*": "tests/study/calibration/test_calibration_commands.py runs it on what clients saw",
    r"maitred capacity .*--latency-error .*": "tests/study/test_studies_doc.py holds its table against what it prints",
    r"python bench/sender\.py": "it takes a minute; tests/study/live/test_bench.py runs a small one",
    r"maitred calibrate vllm\.log .*": "it needs a vLLM's log; tests/study/calibration/test_calibration_commands.py has one",
    r"maitred bench .*": "it needs an endpoint; tests/study/live/test_bench.py measures one",
    r"curl .*/admin/backends": "tests/gateway/test_gateway_discovery.py calls a gateway",
    r"maitred serve .*--discover .*": "tests/gateway/test_gateway_discovery.py has gateways with sources",
    r"curl .*/admin/(reload|drain)": "tests/gateway/test_gateway_reload.py and test_gateway_drain.py ask a gateway for it",
    r"curl .*vllm_xargs.*": "it asks a vLLM; tests/plugins/real_vllm does, where there is one",
    r"pip download .*": "it fetches a package",
    r"python tools/vllm/check_interface\.py .*": "tests/plugins/test_vllm_interface.py runs it on what was read of the wheel",
    r"python -m maitred\.plugins\.vllm .*": "tests/plugins/test_step_log.py runs it on recorded steps",
    r"python -m maitred\.testing\.world .*": "tests/testing/test_world_command.py runs it",
    r"(maitred|python) .*(silicon\w*\.py|published_\w+\.py|aiconfigurator).*": "it needs the extra `silicon`; "
    "tests/instance/catalogue/test_measured_kernels.py runs where it is installed",
    r"python bench/gateway\.py .*": "it compares with nginx and SMG, which need not be there",
    r"python tools/check_dashboard\.py": "it needs a Prometheus; tests/gateway/test_gateway_dashboard.py holds the dashboard "
    "against the metrics that there are",
    r"python bench/fuzz_gateway\.py .*": "it attacks a gateway for minutes, and measures a healthy client beside that",
    r"python bench/determinism\.py .*": "it needs another Python with maitred installed",
    r"python bench/class_effect\.py .*": "tests/stress/test_class_effect.py runs it",
    r"python bench/programs_burst\.py .*": "tests/stress/test_programs_burst.py runs smaller ones",
    r"python bench/batching_table\.py .*": "it takes minutes; tests/batching/test_batching_table.py runs it on a few requests",
    r"python bench/field_hrrn\.py .*": "a seed takes 15 s; tests/sim/test_field_hrrn.py plays its scene",
    r"python bench/programs_paper\.py .*": "it takes minutes; tests/sim/test_programs_paper.py plays its scene",
    r"python bench/theory\.py .*": "it takes minutes; tests/sim/test_theory.py plays its scenes",
    r"python bench/what_if\.py.*": "it takes minutes; tests/study/what_if holds replays against truth",
    r"python bench/simulate\.py .*--million.*": "a million requests take a minute; "
    "test_a_smaller_one_is_run runs the script without them",
}
"""What is not run here, and why."""

SMALLER = [
    (r"maitred simulate .*--num-requests", "--num-requests 40"),
    (r"maitred simulate .*--workload-spec", "--num-requests 40"),
    (r"maitred simulate .*--num-programs", "--num-requests 40"),
    (r"maitred compare", "--num-requests 60 --seeds 2 --jobs 1"),
    (r"maitred sweep", "--jobs 1"),
    (r"maitred capacity .*planner\.yaml", "--max-requests 20 --max-instances 2"),
    (r"maitred capacity", "--num-requests 100 --tolerance 0.3 --seeds 1 --jobs 1"),
    (r"python bench/policies\.py .*--by-length", "--policies fcfs sjf --max-requests 60"),
    (r"python bench/policies\.py", "--policies fcfs hrrn --max-requests 20 --kv-blocks 2000 --processes 1"),
    (r"python bench/router_effect\.py", "--max-requests 20 --num-instances 2"),
    (r"python bench/routing\.py", "--rounds 1 --only round-robin"),
    (r"python bench/capacity\.py", "--hardware H100 --sizes 1 --most 1.05 --rate-scale 0.1"),
    (r"python bench/admission\.py", "--rounds 1 --only off"),
    (r"python bench/agentic\.py", "--rounds 1"),
    (r"python bench/queueing\.py", "--rounds 1 --only fcfs"),
    (r"python bench/programs\.py", "--rounds 1 --sizes 200"),
    (r"python bench/shared_prompt\.py", "--size 60"),
    (r"python bench/kv_pressure\.py", "--size 12"),
    (r"python bench/starvation\.py", "--size 2"),
]
"""What is added to a command, where the expression begins it: of two values the last one counts."""

QWEN = {
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
READ_AS = {"FORMAT:FILE": "maitred:FILE", "azure:FILE": "azure:IN"}
SERVER = re.compile(r"maitred (serve|engine)\b")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which the files are that the documents speak of."""
    for name in ("examples", "tests", "bench"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("images"))
    conversation = gzip.decompress((VECTORS / "mooncake_conversation_head.jsonl.gz").read_bytes())
    samples = ROOT / "tests" / "samples"
    fcfs = (ROOT / "examples" / "studies" / "fcfs.yaml").read_bytes()
    run = next((VECTORS / "vllm_timelines").glob("*Llama*"))
    files = {
        "IN": (samples / "azure_tiny.csv").read_bytes(),
        "AzureLLMInferenceTrace_conv.csv": (samples / "azure_tiny.csv").read_bytes(),
        "FILE": b"arrival_secs,class,prompt_tokens,output_tokens\n0.5,interactive,20,3\n1.5,bulk,400,90\n",
        "conversation_trace.jsonl": conversation,
        "conversation_trace.jsonl.gz": gzip.compress(conversation),
        "synthetic_trace.jsonl": conversation,
        "sessions_delta.jsonl.gz": gzip.compress((samples / "agentic_one_session.jsonl").read_bytes()),
        "maitred.yaml": _block("config.md", "yaml").encode(),
        "planner.yaml": b"{instance: {enable_prefix_caching: true}, routing: {policy: cache-aware}}\n",
        "other.yaml": b"admission: {mode: priority, classes: {bulk: {queue_size: 10}}}\n",
        "smg.yaml": b"classes: {bulk: {queue_size: 10}}\n",
        "A.yaml": fcfs,
        "B.yaml": fcfs.replace(b"fcfs", b"sjf"),
        "SPEC.yaml": b"workload: {rate: 40, num_requests: 40}\ngrid: {cluster.num_instances: [1, 2]}\n",
        "path/to/config.json": json.dumps(QWEN).encode(),
        "requests.csv": (run / "requests.csv").read_bytes(),
        "engine.yaml": b"instance: {latency: {model: linear}}\n",
        "recording.csv": b"arrival_secs,class,prompt_tokens,output_tokens,tenant,max_output_tokens,stream,model,program,"
        b"slo_class,think_secs,continues,outcome,tokens_from,cached_tokens,backend,sent_secs,ttft_secs,e2e_secs\n"
        b"1.5,default,100,3,,,true,m,,,,,completed,usage,,http://a:1,0.001,0.005,0.015\n",
        "steps.csv": b"prefill_tokens,decode_tokens,step_ms\n0,1,5.05\n100,8,7.4\n500,1,15.05\n2000,64,48.2\n",
        "my_policies.py": _block("policies.md", "python").encode(),
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "my_policies", raising=False)
    return tmp_path


def _block(page: str, language: str) -> str:
    return next(block.text for block in blocks(ROOT / "docs" / page) if block.language == language)


def _is_elsewhere(command: str) -> bool:
    return any(re.fullmatch(known, command) for known in ELSEWHERE)


def _arguments(command: str) -> list[str]:
    """The words of a command, with what makes it smaller, and with what its placeholders stand for."""
    more = next((added for known, added in SMALLER if re.match(known, command)), "")
    words = shlex.split(f"{command} {more}")
    found: list[str] = []
    for word in words:
        said = READ_AS.get(word, word)
        found += sorted(str(path) for path in Path().glob(said)) if "*" in said and "/" in said else [said]
    return found


@pytest.mark.parametrize("command", [c for c in ALL if not _is_elsewhere(c) and not SERVER.match(c)])
def test_a_command_runs(command: str, scene: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    program, *arguments = _arguments(command)
    if "--resume" in arguments:  # there must be something to go on with
        assert _run(program, [word for word in arguments if word != "--resume"], monkeypatch) == 0
    code = _run(program, arguments, monkeypatch)
    out, err = capfd.readouterr()
    assert code == 0, err
    assert out.strip() or "--write" in arguments or arguments[0] == "convert"


def _run(program: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """Run a command in this process, and return its exit code."""
    assert program in ("maitred", "python"), f"say in ELSEWHERE why {program} is not run here, or run it"
    try:
        if program == "maitred":
            monkeypatch.setattr(sys, "argv", [program, *arguments])
            main()
        monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
        monkeypatch.setattr(sys, "argv", arguments)
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as ended:
        return ended.code or 0
    return 0


@pytest.fixture(scope="module")
def forking() -> Iterator[Forking]:
    forking = Forking()
    yield forking
    forking.close()


@pytest.mark.parametrize("command", [c for c in ALL if SERVER.match(c) and not _is_elsewhere(c)])
def test_a_server_starts_and_stops(command: str, scene: Path, forking: Forking) -> None:
    arguments = re.sub(r"--port \d+", "", command).removeprefix("maitred ")
    if "--tls-cert" in command:
        _make_certificate()
    running = forking.start([*shlex.split(arguments), "--port", "0"], scene / "stderr")
    try:
        said = _until_ready(running.lines)
        assert running.interrupt() in (0, 130), f"{said}{running.lines.read()}"
    finally:
        running.close()


def _make_certificate() -> None:
    """Make chain.pem and key.pem, or skip the test where nothing can."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost"]
    files = ["-keyout", "key.pem", "-out", "chain.pem"]
    subprocess.run(["openssl", "req", "-x509", *made, *files], check=True, capture_output=True)


def _until_ready(lines: Iterator[str]) -> str:
    said = ""
    for line in lines:
        said += line
        if re.search(r"maitred: .* on https?://|gateway on http://", line):
            return said
    raise AssertionError(f"it ended before it was ready: {said}")


def test_a_smaller_one_is_run(scene: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    monkeypatch.setattr(sys, "argv", ["bench/simulate.py", "--requests", "60", "--rounds", "1"])
    runpy.run_path("bench/simulate.py", run_name="__main__")
    assert "requests" in capfd.readouterr().out


@pytest.mark.parametrize("command", [c for c in ALL if c.startswith("make ")])
def test_a_target_is_there(command: str) -> None:
    target = command.split()[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("known", ELSEWHERE)
def test_what_is_run_elsewhere_is_still_in_the_documents(known: str) -> None:
    assert any(re.fullmatch(known, command) for command in ALL), f"nothing is like {known} any more"


def test_there_are_many() -> None:
    assert len(ALL) > 50
