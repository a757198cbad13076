// Starts the real server on the loopback, and stops exactly that one.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createConnection, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as wait } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { Client } from "tollgate-ratelimit-client";

const LOOPBACK = "127.0.0.1";
const TEST_SERVER = fileURLToPath(new URL("../../test_server.py", import.meta.url));
// Long, so that a busy machine does not look like an outage.
export const PATIENT = { timeoutMs: 20_000 };
const TIMEOUT_MS = 20_000;

const RULES = `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 3, algorithm: fixed_window}
  - key: crowd
    rate_limit: {unit: year, requests_per_unit: 50, algorithm: fixed_window}
  - key: bucket
    rate_limit: {unit: hour, requests_per_unit: 3, algorithm: token_bucket}
  - key: tokens
    rate_limit: {name: of-tokens, unit: hour, requests_per_unit: 1000, algorithm: sliding_log}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 0, algorithm: sliding_log}
  - key: tried
    rate_limit:
      unit: hour
      requests_per_unit: 5
      algorithm: sliding_log
      candidate: {unit: hour, requests_per_unit: 0, algorithm: sliding_log}
  - key: turn
    rate_limit: {unit: second, requests_per_unit: 20, algorithm: leaky_queue, burst: 5}
`;

// The test runner ends a file that takes too long by SIGTERM. Its programs must end with it.
const children = new Set();
process.once("exit", () => children.forEach((child) => child.kill()));
process.once("SIGTERM", () => process.exit(1));

/** Waits until `condition()` resolves to a true value, and returns it. */
export async function eventually(what, condition) {
  const deadline = performance.now() + TIMEOUT_MS;
  for (;;) {
    const found = await condition();
    if (found) return found;
    assert.ok(performance.now() < deadline, `not within ${TIMEOUT_MS} ms: ${what}`);
    await wait(5);
  }
}

/** A directory that exists until the test ends. */
export function directory(test) {
  const path = mkdtempSync(join(tmpdir(), "tollgate-node-"));
  test.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** A new child process, and what `isReady` returned for the first of its lines for which this is a true value. */
export async function start(test, command, arguments_, isReady) {
  const child = spawn(command, arguments_);
  children.add(child);
  const exited = once(child, "exit").finally(() => children.delete(child));
  const stop = async () => {
    child.kill();
    await exited;
  };
  test.after(stop);
  const output = [];
  const ready = new Promise((resolve, reject) => {
    for (const input of [child.stdout, child.stderr])
      createInterface({ input }).on("line", (line) => {
        output.push(line);
        const found = isReady(line);
        if (found) resolve(found);
      });
    child.once("error", reject);
    child.once("exit", (code) => reject(Error(`${command} exited with ${code}:\n${output.join("\n")}`)));
  });
  // A server that ends after it was ready is no failure.
  ready.catch(() => {});
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  const late = once(limit, "abort").then(() => {
    throw Error(`${command} is not ready within ${TIMEOUT_MS} ms:\n${output.join("\n")}`);
  });
  late.catch(() => {});
  return { found: await Promise.race([ready, late]), child, stop };
}

/** A server that is ready, by default with the rules above; `address` is that of its gRPC listener. */
export async function startTollgate(test, { flags = [], rules = RULES } = {}) {
  const { found, child, stop } = await start(
    test,
    "python3",
    [TEST_SERVER, rules, ...flags],
    (line) => line.startsWith("{") && JSON.parse(line),
  );
  const command = async (name) => {
    child.stdin.write(`${name}\n`);
    await once(child.stdout, "data");
  };
  return { address: found.grpc, stop, pause: () => command("pause"), resume: () => command("resume") };
}

/** A client that is closed after the test. */
export function clientOf(test, target, options = {}) {
  const client = new Client(target, options);
  test.after(() => client.close());
  return client;
}

/** A client that is connected, so that the first check of a test is answered at once. */
export async function connectedClient(test, target, options = {}) {
  const client = clientOf(test, target, options);
  await eventually("the server answers", async () => (await client.peek(requestOf("user", "probe"))).source === "server");
  return client;
}

/** A listener that accepts connections and never answers: its address, and the connections. */
export async function silentServer(test) {
  const sockets = new Set();
  const server = createServer((socket) => sockets.add(socket.on("error", () => {})));
  server.listen(0, LOOPBACK);
  await once(server, "listening");
  test.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return { address: `${LOOPBACK}:${server.address().port}`, sockets };
}

/** Forwards connections to a server, and its answers until `loseAnswers()`: then no client learns of them. */
export async function relay(test, target) {
  const sockets = new Set();
  const [host, port] = target.split(":");
  let isLossy = false;
  const listener = createServer((client) => {
    const server = createConnection(Number(port), host);
    for (const socket of [client, server]) sockets.add(socket.on("error", () => {}));
    client.pipe(server);
    server.on("data", (data) => isLossy || client.write(data));
    server.on("end", () => client.end());
  });
  listener.listen(0, LOOPBACK);
  await once(listener, "listening");
  test.after(() => {
    for (const socket of sockets) socket.destroy();
    listener.close();
  });
  const loseAnswers = () => {
    isLossy = true;
  };
  return { address: `${LOOPBACK}:${listener.address().port}`, loseAnswers };
}

/** A request of one hit in the domain of the rules. */
export const requestOf = (key, value) => ({ domain: "shop", descriptors: [{ entries: [[key, value]] }] });
