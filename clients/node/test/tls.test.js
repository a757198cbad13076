import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { clientOf, connectedClient, directory, PATIENT, requestOf, startTollgate } from "./processes.js";

// A certificate and its key; that of an authority, unless one signs it.
function certificate(folder, name, authority) {
  const [key, cert] = ["key", "crt"].map((end) => join(folder, `${name}.${end}`));
  const command = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
  command.push("-keyout", key, "-out", cert, "-subj", `/CN=${name}`);
  if (authority) {
    command.push("-CA", authority.cert, "-CAkey", authority.key);
    command.push("-addext", `subjectAltName=DNS:${name}`, "-addext", "basicConstraints=critical,CA:FALSE");
  }
  execFileSync("openssl", command, { stdio: "pipe", timeout: 20_000 });
  return { key, cert };
}

test("client_with_certificate_is_answered_over_tls", async (t) => {
  const folder = directory(t);
  const authority = certificate(folder, "authority.test");
  const [server, caller] = ["limits.test", "caller.test"].map((name) => certificate(folder, name, authority));
  const flags = ["--grpc-tls-cert", server.cert, "--grpc-tls-key", server.key];
  flags.push("--grpc-tls-client-ca", authority.cert);
  const { address } = await startTollgate(t, { flags });
  const [ca, cert, key] = [authority.cert, caller.cert, caller.key].map((path) => readFileSync(path));

  const client = await connectedClient(t, address, { ...PATIENT, tls: { ca, cert, key, serverName: "limits.test" } });
  assert.equal((await client.check(requestOf("user", "ada"))).allowed, true);

  // Plaintext, an unknown authority, another name, and no certificate of the client.
  for (const tls of [undefined, {}, { ca, cert, key }, { ca, serverName: "limits.test" }]) {
    const { source, noAnswer } = await clientOf(t, address, { timeoutMs: 2_000, tls }).check(requestOf("user", "ada"));
    assert.equal(source, "default");
    assert.ok(["UNAVAILABLE", "DEADLINE_EXCEEDED"].includes(noAnswer.code), noAnswer.code);
  }
});
