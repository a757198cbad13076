"""Rules from a control plane over xDS, with a server of go-control-plane and a real Envoy."""

import shutil

import pytest

from bootstraps import bootstrap, header, rate_limit, route
from control_plane import NODE, limit, metric, needs_control_plane, rules
from processes import LOOPBACK, eventually
from test_tls import Authority, needs_openssl

pytestmark = [pytest.mark.extended, needs_control_plane]


@pytest.fixture
def start_client(start_tollgate):
    """A Tollgate with rules of this control plane."""

    def start(address, scheme="http", flags=(), **options):
        flags = ["--rules-source", "xds", "--rules-xds-url", f"{scheme}://{address}", *flags]
        flags += ["--rules-xds-node-id", NODE, "--rules-xds-retry-min", "50ms", "--rules-xds-retry-max", "200ms"]
        return start_tollgate(None, flags=flags, **options)

    return start


def users(number):
    """Rules by which each user of the domain `edge` has this number of requests."""
    return rules("edge", {"key": "user", **limit(number)})


def test_rules_from_control_plane_limit_requests_through_envoy(start_control_plane, start_client, start_envoy, echo):
    control_plane = start_control_plane()
    control_plane.serve("7", users(3), rules("other", {"key": "user", **limit(1)}))
    tollgate = start_client(control_plane.address)
    envoy = start_envoy(bootstrap([tollgate.grpc], echo.address, [route("/", rate_limit(header("user")))]))

    assert envoy.codes(5, x_user="ann") == [200] * 3 + [429] * 2
    first = control_plane.events("request")[0]
    assert (first["node"], first["version"], first["nonce"]) == (NODE, "", "")
    shown = tollgate.rules()
    assert (shown["version"], shown["domains"], shown["last_error"]) == ("7", {"edge": 1, "other": 1}, None)
    assert metric(tollgate, "tollgate_xds_connected") == 1
    assert metric(tollgate, f'tollgate_rules_info{{hash="{shown["hash"]}",version="7"}}') == 1

    control_plane.serve("8", users(7))
    control_plane.await_accepted("8")
    assert envoy.codes(3, x_user="ann") == [200, 200, 429], "5 hits were counted before"


def test_node_metadata_is_sent_with_each_request(start_control_plane, start_client):
    control_plane = start_control_plane()
    control_plane.serve("1", users(3))

    def metadata(flags):
        before = len(control_plane.events("request"))
        client = start_client(control_plane.address, flags=flags)

        def subscription_and_acceptance():
            requests = control_plane.events("request")[before:]
            return requests if {request["version"] for request in requests} == {"", "1"} else None

        requests = eventually("a subscription and an acceptance", subscription_and_acceptance)
        client.kill()
        return [request["metadata"] for request in requests]

    assert all(sent == {} for sent in metadata([])), "there is none by default"
    flags = ["--rules-xds-node-metadata", "zone=a,team=edge", "--rules-xds-node-metadata", "path=/x=y"]
    assert all(sent == {"zone": "a", "team": "edge", "path": "/x=y"} for sent in metadata(flags))


def test_broken_set_is_refused_with_names_and_old_rules_stay(start_control_plane, start_client):
    control_plane = start_control_plane()
    control_plane.serve("1", users(3))
    tollgate = start_client(control_plane.address)
    inner = [{"key": "", **limit(1)}, {"key": "a", **limit(1, "UNKNOWN")}]
    broken = {"key": "path", "value": "/api", "descriptors": inner}

    control_plane.serve("2", users(4), rules("other", broken))
    refused = control_plane.await_refused()

    assert refused["version"] == "1", "the last accepted version"
    lines = refused["error"].splitlines()
    assert len(lines) == 2, lines
    assert lines[0].startswith("resource other at other.path_/api.: `key` is empty"), lines
    assert lines[1].startswith("resource other at other.path_/api.a: `unit` is missing"), lines
    shown = tollgate.rules()
    assert (shown["version"], shown["domains"]) == ("1", {"edge": 1})
    assert shown["last_error"]["problems"] == lines
    assert metric(tollgate, "tollgate_rules_stale") == 1
    assert tollgate.is_ready() and tollgate.remaining(("user", "ann")) == 3

    control_plane.serve("3", users(4))
    control_plane.await_accepted("3")
    assert tollgate.rules()["last_error"] is None
    assert metric(tollgate, 'tollgate_xds_responses_total{answer="refused"}') >= 1


def test_conflict_of_two_tenants_leaves_out_the_second_descriptor_only(start_control_plane, start_client):
    control_plane = start_control_plane()
    control_plane.serve("1", users(3))
    tollgate = start_client(control_plane.address)
    plan, user = {"key": "plan", **limit(5)}, {"key": "user", **limit(9)}
    control_plane.serve("2", rules("edge", {"key": "user", **limit(3)}, user, plan), rules("other", user))
    control_plane.await_accepted("2")

    assert [tollgate.remaining((key, "x")) for key in ("user", "plan")] == [3, 5]
    shown = tollgate.rules()
    assert shown["domains"] == {"edge": 2, "other": 1}
    [warning] = shown["warnings"]
    assert "edge.user: this descriptor is left out" in str(warning)
    assert metric(tollgate, "tollgate_xds_conflicts") == 1


def test_unknown_field_of_a_limit_is_shown_and_logged_once(start_control_plane, start_client):
    control_plane = start_control_plane()
    newer = {"key": "user", **limit(3, name="newer")}
    inner = {"key": "path", "descriptors": [newer | {"key": "plan"}]}
    control_plane.serve("1", rules("edge", newer, inner), rules("other", {"key": "user", **limit(9)}))
    tollgate = start_client(control_plane.address)
    control_plane.await_accepted("1")

    assert tollgate.remaining(("user", "x")) == 3, "what is known of the limit applies"
    [warning] = tollgate.rules()["warnings"]
    expected = "resource edge at edge.user: the field rate_limit.100 is unknown to this version and is ignored, here and at 1"
    assert expected in warning
    assert metric(tollgate, "tollgate_xds_unknown_fields") == 2
    logged = [event for event in tollgate.events() if event["message"] == "the rules have warnings"]
    assert [expected in event["list"] for event in logged] == [True]
    findings = tollgate.call(tollgate.admin, "/doctor").json()["findings"]
    [finding] = [finding for finding in findings if finding["id"] == "unknown_fields"]
    assert "in 2 descriptors" in finding["what"]
    control_plane.serve("2", rules("edge", {"key": "user", **limit(3)}))
    control_plane.await_accepted("2")
    assert metric(tollgate, "tollgate_xds_unknown_fields") == 0


def test_set_that_is_partial_for_a_moment_drops_no_counter(start_control_plane, start_client):
    control_plane = start_control_plane()
    control_plane.serve("1", users(3), rules("other", {"key": "user", **limit(1)}))
    tollgate = start_client(control_plane.address)
    assert [tollgate.ask("edge", "user=ann").returncode for _ in range(2)] == [0, 0]
    for version, sets in (("2", []), ("3", [users(3)])):
        control_plane.serve(version, *sets, rules("other", {"key": "user", **limit(1)}))
        control_plane.await_accepted(version)
    assert tollgate.remaining(("user", "ann")) == 1
    assert metric(tollgate, 'tollgate_xds_responses_total{answer="accepted"}') == 3
    assert metric(tollgate, "tollgate_xds_removals_total") == 1


def test_refused_set_is_not_asked_for_in_a_loop(start_control_plane, start_client):
    control_plane = start_control_plane()
    control_plane.serve("1", rules("edge", {"key": ""}))
    start_client(control_plane.address, ready=False)

    eventually("the set is refused again", lambda: refusals(control_plane) >= 2)
    assert refusals(control_plane) < 10, "go-control-plane sends the set again as soon as it is refused"


def refusals(control_plane):
    return sum(1 for request in control_plane.events("request") if request["error"])


def test_restarted_control_plane_with_same_version_replaces_rules(start_control_plane, start_client):
    control_plane = start_control_plane()
    control_plane.serve("1", users(3))
    tollgate = start_client(control_plane.address)
    address = control_plane.address

    control_plane.kill()
    eventually("the loss is shown", lambda: metric(tollgate, "tollgate_xds_connected") == 0)
    assert tollgate.remaining(("user", "ann")) == 3 and tollgate.is_ready()
    assert [e["message"] for e in tollgate.events()].count(
        "the control plane cannot be reached; the active rules stay"
    ) <= 2, "one line for the end of the stream and one for refused connections"
    assert "the connection was lost" in [e.get("error") for e in tollgate.events()]

    again = start_control_plane(listen=address)
    again.serve("1", users(9))
    again.await_accepted("1")
    assert tollgate.remaining(("user", "ann")) == 9
    assert metric(tollgate, "tollgate_xds_connected") == 1


def test_empty_set_removes_all_rules(start_control_plane, start_client):
    control_plane = start_control_plane()
    control_plane.serve("1", users(0))
    tollgate = start_client(control_plane.address)
    assert tollgate.ask("edge", "user=ann").returncode == 2

    control_plane.serve("2")
    control_plane.await_accepted("2")
    assert tollgate.rules()["domains"] == {}
    assert tollgate.ask("edge", "user=ann").returncode == 3, "no rule, and so it passes"


def test_tree_of_128_levels_limits(start_control_plane, start_client):
    def nested(levels):
        inner = {"key": "last", **limit(2)}
        for _ in range(levels - 1):
            inner = {"key": "k", "value": "v", "descriptors": [inner], "shadowMode": False}
        return rules("edge", inner)

    control_plane = start_control_plane()
    control_plane.serve("1", nested(128))
    tollgate = start_client(control_plane.address)
    entries = [("k", "v")] * 127 + [("last", "x")]
    assert tollgate.remaining(*entries) == 2

    control_plane.serve("2", nested(129))
    assert "nested more than 128 deep" in control_plane.await_refused()["error"]
    assert tollgate.remaining(*entries) == 2


def test_response_beyond_the_bound_keeps_old_rules(start_control_plane, start_client):
    control_plane = start_control_plane()
    control_plane.serve("1", users(3))
    tollgate = start_client(control_plane.address, flags=["--rules-xds-max-message", "64KiB"])

    many = [{"key": "user", "value": f"{number:0100}", **limit(1)} for number in range(1000)]
    control_plane.serve("2", rules("edge", *many))

    def explained():
        return any("65536" in str(event.get("error", "")) for event in tollgate.events())

    eventually("the bound is named in the log", explained)
    assert tollgate.remaining(("user", "ann")) == 3
    control_plane.serve("3", users(4))
    control_plane.await_accepted("3")


@needs_openssl
def test_mutual_tls_with_renewed_certificates(start_control_plane, start_client, tmp_path):
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    files = {name: tmp_path / f"client.{name}" for name in ("ca", "cert", "key")}

    def install(authority):
        cert, key = authority.sign("client", "DNS:client")
        for name, path in {"ca": authority.cert, "cert": cert, "key": key}.items():
            shutil.copy(path, files[name])

    def tls(authority):
        cert, key = authority.sign("server", "DNS:envoy-gateway")
        return ["-cert", cert, "-key", key, "-client-ca", authority.cert]

    install(first)
    control_plane = start_control_plane(flags=tls(first))
    control_plane.serve("1", users(3))
    flags = [part for name, path in files.items() for part in (f"--rules-xds-{name}", path)]
    flags += ["--rules-xds-server-name", "envoy-gateway"]
    tollgate = start_client(control_plane.address, scheme="https", flags=flags)
    assert tollgate.remaining(("user", "ann")) == 3
    address = control_plane.address

    control_plane.kill()
    install(second)
    again = start_control_plane(listen=address, flags=tls(second))
    again.serve("1", users(4))
    again.await_accepted("1")
    assert tollgate.remaining(("user", "ann")) == 4


@needs_openssl
def test_control_plane_of_another_authority_is_refused(start_control_plane, start_client, tmp_path):
    theirs, ours = Authority(tmp_path / "theirs"), Authority(tmp_path / "ours")
    cert, key = theirs.sign("server", f"IP:{LOOPBACK}")
    control_plane = start_control_plane(flags=["-cert", cert, "-key", key])
    control_plane.serve("1", users(3))
    flags = ["--rules-xds-ca", ours.cert]
    tollgate = start_client(control_plane.address, scheme="https", flags=flags, ready=False)

    eventually("the reason is logged", lambda: "UnknownIssuer" in tollgate.output())
    assert tollgate.call(tollgate.http, "/readyz").code == 503
    assert not control_plane.events("request")


def overlay_rules(limit):
    rules = f"rules: [{{match: [user], rate_limit: {limit}}}]"
    return f"overlay: [{{domain: edge, {rules}}}]"


def test_overlay_adds_an_algorithm_and_follows_its_file(start_control_plane, start_client, tmp_path):
    control_plane = start_control_plane()
    control_plane.serve("1", users(3))
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(overlay_rules("{algorithm: token_bucket, burst: 5}"))
    tollgate = start_client(control_plane.address, flags=["--rules-overlay", overlay])
    assert tollgate.remaining(("user", "ann")) == 5
    explained = tollgate.call(tollgate.admin, "/explain?domain=edge&key=user=ann").json()
    assert explained["rules"]["version"] == "1"
    assert explained["descriptors"][0]["rule"]["overlay"] == f"{overlay}:1:34"

    overlay.write_text(overlay_rules("{algorithm: token_bucket, burst: 8}"))
    tollgate.await_remaining(8, ("user", "ann"))
    assert tollgate.rules()["version"] == "1"

    overlay.write_text(overlay_rules("{algorithm: token_buckt}"))
    eventually("the problem is shown", lambda: tollgate.rules()["overlay_problems"])
    assert metric(tollgate, "tollgate_overlay_stale") == 1
    control_plane.serve("2", users(3), rules("other", {"key": "user", **limit(1)}))
    control_plane.await_accepted("2")
    assert tollgate.remaining(("user", "ann")) == 8, "the previous overlay stays, also for new rules"

    overlay.write_text(overlay_rules("{burst: 9}"))
    tollgate.await_remaining(3, ("user", "ann"))
    shown = tollgate.rules()
    assert not shown["overlay_problems"] and len(shown["warnings"]) == 1, shown
    assert "does not fit this rule and is left out" in shown["warnings"][0]
    assert metric(tollgate, "tollgate_overlay_misfits") == 1
    assert not any(request["error"] for request in control_plane.events("request")), "no set is refused for an overlay"
