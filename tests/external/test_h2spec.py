"""HTTP/2 conformance of the gRPC listener, by h2spec.

h2spec sends GET requests. The listener answers them with 405 as soon as it has their headers. If a case sends more of
the request, and the answer was faster, the listener has reset the stream and ignores the rest, as RFC 9113 (8.1) allows;
h2spec waits in vain for an error. So a case that fails is repeated.
"""

import pathlib
import shutil
import subprocess
import xml.etree.ElementTree

import pytest
import yaml

from rls import METHOD

H2SPEC = shutil.which("h2spec")
EXCEPTIONS = pathlib.Path(__file__).parent / "h2spec" / "exceptions.yaml"
# All cases of the version in h2spec/go.mod, with those of strict mode.
CASES = 146
REPEATS = 10
TIMEOUT = 300.0

RULES = """
    domain: shop
    descriptors:
      - {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000}}
"""

pytestmark = pytest.mark.skipif(
    H2SPEC is None, reason="h2spec is not installed; tests/run installs it if Go is available"
)


def run(grpc, report, *sections):
    """The number of cases in `sections`, and those that have not passed."""
    host, port = grpc.rsplit(":", 1)
    command = [H2SPEC, "--strict", "-h", host, "-p", port, "-P", METHOD, "-j", report, *sections]
    subprocess.run([str(part) for part in command], stdout=subprocess.DEVNULL, timeout=TIMEOUT, check=False)
    cases = list(xml.etree.ElementTree.parse(report).iter("testcase"))
    name = "{package} {classname}".format_map
    return len(cases), {name(case.attrib) for case in cases if len(case) > 0}


def test_cases_that_do_not_pass_are_exceptions(start_tollgate, rule_file, tmp_path):
    report = tmp_path / "report.xml"
    exceptions = {each["case"] for each in yaml.safe_load(EXCEPTIONS.read_text())}
    grpc = start_tollgate(rule_file(RULES)).grpc

    number, failed = run(grpc, report)
    for _ in range(REPEATS):
        if failed <= exceptions:
            break
        sections = sorted({case.split()[0] for case in failed - exceptions})
        failed &= exceptions | run(grpc, report, *sections)[1]

    assert number == CASES
    assert failed <= exceptions
