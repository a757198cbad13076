"""Edits of a rule file during requests through a real Envoy."""

import os

import pytest

from bootstraps import bootstrap, header, rate_limit, route
from processes import eventually

LIMIT = "{{domain: edge, descriptors: [{{key: user, rate_limit: {{unit: year, requests_per_unit: {}{}}}}}]}}"


def classic(limit):
    return LIMIT.format(limit, "")


def named(limit):
    return LIMIT.format(limit, ", algorithm: fixed_window")


@pytest.fixture
def edge(rule_file, start_tollgate, start_envoy, echo):
    def start(rules):
        tollgate = start_tollgate(rule_file(rules))
        routes = [route("/", rate_limit(header("user")))]
        return tollgate, start_envoy(bootstrap([tollgate.grpc], echo.address, routes))

    return start


def in_place(path, text):
    path.write_text(text)


def renamed_over(path, text):
    new = path.with_name("new-version.tmp")
    new.write_text(text)
    os.replace(new, path)


def deleted_and_created(path, text):
    path.unlink()
    path.write_text(text)


def saved_by_an_editor(path, text):
    """Keeps the old version as a backup, as some editors do."""
    os.replace(path, path.with_name(f"{path.name}~"))
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@pytest.mark.parametrize("edit", [in_place, renamed_over, deleted_and_created, saved_by_an_editor])
def test_edited_limit_applies_to_existing_counter_at_once(edge, rule_file, edit):
    tollgate, envoy = edge(classic(3))
    path = rule_file(classic(3))
    assert envoy.codes(2, x_user="ann") == [200] * 2
    generation = tollgate.rules()["generation"]

    edit(path, classic(5))
    tollgate.await_generation_after(generation)

    response = envoy.get(x_user="ann")
    assert (response.code, response.headers["x-ratelimit-remaining"]) == (200, "2"), "2 hits were counted before, 1 now"
    assert envoy.codes(3, x_user="ann") == [200, 200, 429]


def test_swapped_symlink_is_reloaded(tmp_path, start_tollgate):
    """The layout of a ConfigMap mounted as a directory."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()

    def version(number, text):
        directory = mounted / f"..version_{number}"
        directory.mkdir()
        (directory / "rules.yaml").write_text(text)
        (mounted / "..data_tmp").symlink_to(directory.name)
        os.replace(mounted / "..data_tmp", mounted / "..data")

    version(1, classic(1))
    (mounted / "rules.yaml").symlink_to("..data/rules.yaml")
    tollgate = start_tollgate(mounted)

    for number in range(2, 7):
        generation = tollgate.rules()["generation"]
        version(number, classic(number))
        tollgate.await_generation_after(generation)
        assert tollgate.ask("edge", "user=ann").returncode == 0
        assert tollgate.remaining(("user", "ann")) == 1, "the limit rises by one each time, and one hit is charged"
        assert not tollgate.rules()["last_error"], "no file was read twice"


def test_limit_lowered_removed_and_restored_keeps_count(edge, rule_file):
    tollgate, envoy = edge(named(10))
    assert envoy.codes(6, x_user="ann") == [200] * 6

    generation = tollgate.rules()["generation"]
    rule_file(named(4))
    tollgate.await_generation_after(generation)
    response = envoy.get(x_user="ann")
    assert (response.code, response.headers["x-ratelimit-remaining"]) == (429, "0")

    generation = tollgate.rules()["generation"]
    rule_file("{domain: edge, descriptors: [{key: group}]}")
    tollgate.await_generation_after(generation)
    assert envoy.codes(2, x_user="ann") == [200] * 2, "no rule, no limit"

    generation = tollgate.rules()["generation"]
    rule_file(named(8))
    tollgate.await_generation_after(generation)
    assert envoy.codes(3, x_user="ann") == [200, 200, 429], "6 hits were counted; hits without a limit were not"


def test_raised_limit_admits_exactly_the_difference(edge, rule_file):
    tollgate, envoy = edge(named(10))
    assert envoy.codes(50, x_user="ann") == [200] * 10 + [429] * 40

    generation = tollgate.rules()["generation"]
    rule_file(named(20))
    tollgate.await_generation_after(generation)

    assert envoy.codes(15, x_user="ann") == [200] * 10 + [429] * 5


@pytest.mark.parametrize(
    "broken",
    ["", "domain: edge\ndescriptors:\n  - key: user\n    rate_limit: {unit: ye", "domain: edge\ndescriptor: []\n"],
    ids=["empty", "half written", "misspelled"],
)
def test_broken_edit_keeps_old_limit_until_repaired(edge, rule_file, broken):
    tollgate, envoy = edge(classic(3))
    assert envoy.get(x_user="ann").code == 200
    before = tollgate.rules()
    assert not before["last_error"]

    rule_file(broken)
    eventually("the error is shown", lambda: tollgate.rules()["last_error"])
    during = tollgate.rules()
    assert (during["generation"], during["hash"]) == (before["generation"], before["hash"])
    assert envoy.codes(3, x_user="ann") == [200, 200, 429]
    assert tollgate.is_ready(), "the process stays ready with its old rules"

    rule_file(classic(4))
    tollgate.await_generation_after(before["generation"])
    assert not tollgate.rules()["last_error"]
