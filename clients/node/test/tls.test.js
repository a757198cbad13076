import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { clientOf, connectedClient, directory, PATIENT, startTollgate, user } from "./processes.js";

// A certificate that is its own authority.
function certificate(folder, name, alternative) {
  const [key, cert] = ["key", "crt"].map((end) => join(folder, `${name}.${end}`));
  const make = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
  const named = ["-subj", `/CN=${name}`, "-addext", `subjectAltName=${alternative}`];
  execFileSync("openssl", [...make, "-keyout", key, "-out", cert, ...named], { stdio: "pipe", timeout: 20_000 });
  return { key, cert };
}

test("client_with_certificate_is_answered_over_tls", async (t) => {
  const folder = directory(t);
  const server = certificate(folder, "server", "DNS:limits.test");
  const caller = certificate(folder, "caller", "DNS:caller.test");
  const flags = ["--grpc-tls-cert", server.cert, "--grpc-tls-key", server.key, "--grpc-tls-client-ca", caller.cert];
  const { address } = await startTollgate(t, { flags });
  const [ca, cert, key] = [server.cert, caller.cert, caller.key].map((path) => readFileSync(path));

  const client = await connectedClient(t, address, { ...PATIENT, tls: { ca, cert, key, serverName: "limits.test" } });
  assert.equal((await client.check("shop", user("ada"))).allowed, true);

  for (const tls of [undefined, {}, { ca, cert, key }, { ca, serverName: "limits.test" }]) {
    const { source, noAnswer } = await clientOf(t, address, { timeoutMs: 2_000, tls }).check("shop", user("ada"));
    assert.equal(source, "default");
    assert.ok(["UNAVAILABLE", "DEADLINE_EXCEEDED"].includes(noAnswer.code), noAnswer.code);
  }
});
