// Sends one request to Tollgate; limiter.js is the part for a service.

import { parseArgs } from "node:util";
import grpc from "@grpc/grpc-js";
import { Limiter, OnError } from "./limiter.js";

const USAGE =
  "usage: node main.js --to HOST:PORT --domain D [--hits N] [--timeout MS] [--on-error allow|deny]" +
  " KEY=VALUE[,KEY=VALUE]";
const EXIT = { ALLOWED: 0, USAGE: 1, DENIED: 2 };

function parse() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      to: { type: "string" },
      domain: { type: "string" },
      hits: { type: "string", default: "1" },
      timeout: { type: "string", default: "250" },
      "on-error": { type: "string", default: OnError.ALLOW },
    },
  });
  const { to, domain, "on-error": onError } = values;
  if (!to || !domain || positionals.length !== 1) throw Error("--to, --domain and one descriptor are required");
  if (!Object.values(OnError).includes(onError)) throw Error("--on-error is allow or deny");
  const [hits, timeoutMs] = [values.hits, values.timeout].map(wholeNumber);
  return { to, domain, entries: positionals[0].split(",").map(entryOf), hits, timeoutMs, onError };
}

function wholeNumber(text) {
  const number = /^\d+$/.test(text) ? Number(text) : 0;
  if (number < 1 || number >= 2 ** 32) throw Error("--hits and --timeout are whole numbers from 1");
  return number;
}

function entryOf(pair) {
  const end = pair.indexOf("=");
  if (end < 1) throw Error(`'${pair}' is not KEY=VALUE`);
  return { key: pair.slice(0, end), value: pair.slice(end + 1) };
}

function line({ allowed, remaining, retryAfterSeconds, noAnswer }) {
  const verdict = allowed ? "allowed" : "denied";
  if (noAnswer) return `${verdict} no_answer=${grpc.status[noAnswer.code]}`;
  // Whole seconds as in the header Retry-After, rounded up so that a retry is not too early.
  return `${verdict} remaining=${remaining ?? "unlimited"} retry_after=${Math.ceil(retryAfterSeconds)}`;
}

async function main() {
  let asked;
  try {
    asked = parse();
  } catch (error) {
    console.error(`${error.message}\n${USAGE}`);
    return EXIT.USAGE;
  }
  const limiter = new Limiter(asked);
  const decision = await limiter.ask(asked);
  limiter.close();
  console.log(line(decision));
  if (decision.noAnswer) console.error(decision.noAnswer.details);
  return decision.allowed ? EXIT.ALLOWED : EXIT.DENIED;
}

process.exitCode = await main();
