// The channel to the servers of one name.

import {
  type ChannelOptions,
  type Client as GrpcClient,
  type ClientUnaryCall,
  credentials,
  Metadata,
  type ServiceError,
  status,
} from "@grpc/grpc-js";

import { errorOf, RateLimiter, type RequestField, type WireAnswer } from "./codec.js";
import { avoid, foundNoOther, hasChargedNothing, POLICY } from "./elsewhere.js";
import { closedError, lateError } from "./errors.js";

/** Certificates in PEM. */
export interface TlsOptions {
  /** The authorities that may sign the certificate of the server; those of Node if it is left out. */
  readonly ca?: Buffer | undefined;
  /** The certificate chain of the client, and its key. */
  readonly cert?: Buffer | undefined;
  readonly key?: Buffer | undefined;
  /** The name in the certificate of the server, if it is not the host of the target. */
  readonly serverName?: string | undefined;
}

/** The calls that take requests and return as many answers. */
export type Method = "Check" | "Peek" | "Refund";

/** The calls of reservations. */
export type ReservationMethod = "Reserve" | "Settle" | "Cancel";

/** The calls of limits of their own. */
export type OwnLimitMethod = "SetLimits" | "GetLimits" | "ClearLimits" | "ListLimits";

const OPTIONS: ChannelOptions = {
  "grpc.service_config": JSON.stringify({ loadBalancingConfig: [{ [POLICY]: {} }] }),
  "grpc.service_config_disable_resolution": 1,
  // Finds new addresses of the name soon after a connection has ended. The default is 30 s.
  "grpc.dns_min_time_between_resolutions_ms": 5_000,
  // The default is up to 2 min.
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
  // Detects a server that disappeared without closing the connection, also before the next check.
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 2_000,
  "grpc.keepalive_permit_without_calls": 1,
  // Answers are larger than their requests. The default is 4 MiB.
  "grpc.max_receive_message_length": 32 << 20,
};

const NO_RESPONSE = { code: status.UNKNOWN, details: "no response" };

// A timer of Node may be early, since it counts whole milliseconds.
const TIMER_EARLY_MS_MAX = 2;

/** Connects in the background, balances calls over all addresses and reconnects by itself. */
export class Connection {
  readonly #client: GrpcClient;
  readonly #underWay = new Set<ClientUnaryCall>();
  #closed = false;

  constructor(target: string, tls: TlsOptions | undefined) {
    const security = tls
      ? credentials.createSsl(tls.ca, tls.key, tls.cert)
      : credentials.createInsecure();
    const named = tls?.serverName ? { "grpc.ssl_target_name_override": tls.serverName } : {};
    this.#client = new RateLimiter(target, security, { ...OPTIONS, ...named });
    // Connects now, so that the first request does not wait for it.
    this.#client.getChannel().getConnectivityState(true);
  }

  /** Rejects with the errors of `errorOf`. */
  async call(method: Method, requests: readonly RequestField[], timeoutMs: number): Promise<WireAnswer[]> {
    const join = (fields: readonly RequestField[]) => Buffer.concat(fields.map(({ field }) => field));
    type Response = { answers: WireAnswer[] };
    const { answers } = await this.#send<readonly RequestField[], Response>(method, join, requests, timeoutMs);
    return answers;
  }

  /** Sends one message, with a token if there is one. Rejects with the errors of `errorOf`. */
  send<Response>(
    method: ReservationMethod | OwnLimitMethod,
    message: object,
    timeoutMs: number,
    token = "",
  ): Promise<Response> {
    return this.#send(method, methodOf(method).requestSerialize, message, timeoutMs, token);
  }

  /** Ends the calls under way. */
  close(): void {
    this.#closed = true;
    for (const call of this.#underWay) call.cancel();
    this.#client.close();
  }

  #send<Message, Response>(
    method: Method | ReservationMethod | OwnLimitMethod,
    serialize: (message: Message) => Buffer,
    message: Message,
    timeoutMs: number,
    token = "",
  ): Promise<Response> {
    const { path, responseDeserialize } = methodOf(method);
    const deadline = Date.now() + timeoutMs;
    return new Promise((resolve, reject) => {
      // A call that has charged nothing is repeated once, at another address.
      const attempt = (before: { error: ServiceError; address: string } | undefined) => {
        if (this.#closed) return reject(closedError());
        const metadata = new Metadata();
        if (token !== "") metadata.set("authorization", `Bearer ${token}`);
        if (before) avoid(metadata, before.address);
        const done = (error: ServiceError | null, response?: Response) => {
          this.#underWay.delete(call);
          if (response) return resolve(response);
          if (error && !before && hasChargedNothing(error)) return attempt({ error, address: call.getPeer() });
          const { code, details } = (error && foundNoOther(error) ? before?.error : error) ?? NO_RESPONSE;
          if (this.#closed) return reject(closedError());
          // The server may say the same of a call of its own.
          const isLate = code === status.DEADLINE_EXCEEDED && Date.now() >= deadline - TIMER_EARLY_MS_MAX;
          reject(isLate ? lateError() : errorOf(code, details));
        };
        const call = this.#client.makeUnaryRequest(
          path,
          serialize,
          responseDeserialize,
          message,
          metadata,
          { deadline },
          done,
        );
        this.#underWay.add(call);
      };
      attempt(undefined);
    });
  }
}

function methodOf(method: Method | ReservationMethod | OwnLimitMethod) {
  const found = RateLimiter.service[method];
  if (found === undefined) throw Error(`the service has no method ${method}`);
  return found;
}
