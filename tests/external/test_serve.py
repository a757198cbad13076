"""`tollgate serve`: start, output and exit."""

import json
import os
import signal
import subprocess

import pytest

from processes import LOOPBACK, TOLLGATE, eventually, http_call, run

GOOD = """
    domain: edge
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 2}
"""


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_server_answers_probes_and_exits_with_success(rule_file, start_tollgate, stop):
    tollgate = start_tollgate(rule_file(GOOD))
    for path in ("/healthcheck", "/livez", "/readyz"):
        assert http_call(tollgate.http, path).code == 200

    tollgate.child.send_signal(stop)

    assert tollgate.wait() == 0


def test_server_without_valid_rules_is_not_ready_until_repaired(rule_file, start_tollgate):
    path = rule_file("domain: edge\ndescriptor: []\n")
    tollgate = start_tollgate(path, ready=False)
    error = eventually("the error is shown", lambda: tollgate.rules()["last_error"])
    assert f"{path.name}:2:1" in json.dumps(error)
    assert http_call(tollgate.http, "/livez").code == 200
    assert http_call(tollgate.http, "/readyz").code == 503
    assert tollgate.ask("edge", "user=ann").returncode == 1, "without rules there is no decision"

    rule_file(GOOD)
    tollgate.await_ready()

    assert [tollgate.ask("edge", "user=ann").returncode for _ in range(3)] == [0, 0, 2]


def test_broken_generation_is_logged_once(rule_file, start_tollgate):
    path = rule_file(GOOD)
    tollgate = start_tollgate(path)
    generation = tollgate.rules()["generation"]

    # The same broken text several times: each time a complete new file.
    for number in range(5):
        again = path.with_name(f"broken-{number}.tmp")
        again.write_text("domain: edge\ndescriptor: []\n")
        os.replace(again, path)
        eventually("the error is shown", lambda: tollgate.rules()["last_error"])
    # The applied repair proves that all earlier events have been handled.
    good = path.with_name("good.tmp")
    good.write_text("domain: edge\ndescriptors: [{key: user}]\n")
    os.replace(good, path)
    tollgate.await_generation_after(generation)

    errors = [event for event in tollgate.events() if event.get("level") in ("ERROR", "WARN")]
    assert len(errors) == 1, errors


def test_json_answers_200_429_and_400(rule_file, start_tollgate):
    tollgate = start_tollgate(rule_file(GOOD))
    request = json.dumps({"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]})

    responses = [http_call(tollgate.http, "/json", "POST", body=request) for _ in range(3)]

    assert [response.code for response in responses] == [200, 200, 429]
    assert responses[0].json()["overallCode"] == "OK"
    assert responses[0].json()["statuses"][0]["currentLimit"] == {"requestsPerUnit": 2, "unit": "YEAR"}
    assert responses[2].json()["overallCode"] == "OVER_LIMIT"
    for bad in ("", "{", "[]", "{}", '{"domain": "edge"}', '{"domain": "edge", "descriptor": []}'):
        assert http_call(tollgate.http, "/json", "POST", body=bad).code == 400, bad


def test_addend_0_is_1_for_request_and_peek_for_descriptor(rule_file, start_tollgate):
    tollgate = start_tollgate(rule_file(GOOD.replace("requests_per_unit: 2", "requests_per_unit: 20")))
    entries = {"entries": [{"key": "user", "value": "ann"}]}

    def remaining_after(addend, *descriptors):
        request = {"domain": "edge", "hitsAddend": addend, "descriptors": descriptors}
        response = http_call(tollgate.http, "/json", "POST", body=json.dumps(request)).json()
        return [status["limitRemaining"] for status in response["statuses"]]

    assert remaining_after(0, entries) == [19]
    assert remaining_after(7, {**entries, "hitsAddend": "0"}) == [19]
    # Each descriptor of a request is charged its own addend.
    bob = {"entries": [{"key": "user", "value": "bob"}]}
    assert remaining_after(2, {**entries, "hitsAddend": "5"}, bob) == [14, 18]


def test_second_instance_on_same_port_is_an_error(rule_file, start_tollgate):
    path = rule_file(GOOD)
    tollgate = start_tollgate(path)

    listen = ["--grpc-listen", tollgate.grpc]
    listen += [part for name in ("http", "admin", "metrics") for part in (f"--{name}-listen", f"{LOOPBACK}:0")]
    done = run("serve", "--rules", path, *listen)

    assert done.returncode not in (0, None)
    assert tollgate.grpc in done.stdout + done.stderr
    assert tollgate.is_ready()


@pytest.mark.parametrize(
    "environment, named",
    [
        ({"TOLLGATE_DRAIN__DELAY": "soon"}, "delay"),
        ({"TOLLGATE_GRPC__LISTN": "127.0.0.1:0"}, "listn"),
    ],
    ids=["bad value", "unknown name"],
)
def test_bad_setting_is_reported_before_listening(rule_file, environment, named):
    names = ("grpc", "http", "admin", "metrics")
    listen = [part for name in names for part in (f"--{name}-listen", f"{LOOPBACK}:0")]
    command = [str(TOLLGATE), "serve", "--rules", str(rule_file(GOOD)), "--log-format", "json", *listen]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)

    assert done.returncode not in (0, None)
    assert named in (done.stdout + done.stderr).lower()
    assert "listening" not in done.stdout + done.stderr


def test_variable_of_no_setting_is_ignored(rule_file):
    environment = {"TOLLGATE_PORT": "tcp://10.0.0.1:8081", "TOLLGATE_SERVICE_HOST": "10.0.0.1"}
    command = [str(TOLLGATE), "check", str(rule_file(GOOD))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)

    assert done.returncode == 0, done
