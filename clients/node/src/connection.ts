// The channel to the servers of one name.

import { fileURLToPath } from "node:url";

import {
  type ChannelOptions,
  Client as GrpcClient,
  credentials,
  loadPackageDefinition,
  type ServiceClientConstructor,
  type ServiceError,
} from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

import { errorOf, type WireAnswer, type WireRequest } from "./codec.js";
import { NoAnswerError } from "./errors.js";

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
export type HoldMethod = "Reserve" | "Settle" | "Cancel";

type Callback = (error: ServiceError | null, response?: unknown) => void;
type Unary = (message: object, options: { deadline: number }, callback: Callback) => void;
type RateLimiter = GrpcClient & Record<Method | HoldMethod, Unary>;

/** The directory of `tollgate/v1/tollgate.proto`, for calls that the client does not have. */
export const PROTO_DIRECTORY = fileURLToPath(new URL("../proto", import.meta.url));
const OPTIONS: ChannelOptions = {
  "grpc.service_config": JSON.stringify({ loadBalancingConfig: [{ round_robin: {} }] }),
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
};

const definition = loadSync("tollgate/v1/tollgate.proto", {
  includeDirs: [PROTO_DIRECTORY],
  enums: String,
  longs: Number,
  defaults: true,
});
const { tollgate } = loadPackageDefinition(definition) as unknown as {
  tollgate: { v1: { RateLimiter: ServiceClientConstructor } };
};

/** Connects in the background, balances calls over all addresses and reconnects by itself. */
export class Connection {
  readonly #client: RateLimiter;
  #closed = false;

  constructor(target: string, tls: TlsOptions | undefined) {
    const security = tls
      ? credentials.createSsl(tls.ca, tls.key, tls.cert)
      : credentials.createInsecure();
    const named = tls?.serverName ? { "grpc.ssl_target_name_override": tls.serverName } : {};
    this.#client = new tollgate.v1.RateLimiter(target, security, { ...OPTIONS, ...named }) as unknown as RateLimiter;
    // Connects now, so that the first request does not wait for it.
    this.#client.getChannel().getConnectivityState(true);
  }

  /** Rejects with the errors of `errorOf`. */
  async call(method: Method, requests: WireRequest[], timeoutMs: number): Promise<WireAnswer[]> {
    return (await this.send<{ answers: WireAnswer[] }>(method, { requests }, timeoutMs)).answers;
  }

  /** Sends one message. Rejects with the errors of `errorOf`. */
  send<Response>(method: Method | HoldMethod, message: object, timeoutMs: number): Promise<Response> {
    if (this.#closed) return Promise.reject(new NoAnswerError("CANCELLED", "the client is closed"));
    return new Promise((resolve, reject) => {
      this.#client[method](message, { deadline: Date.now() + timeoutMs }, (error, response) => {
        if (response) resolve(response as Response);
        else reject(errorOf(error?.code ?? 2, error?.details ?? "no response"));
      });
    });
  }

  close(): void {
    this.#closed = true;
    this.#client.close();
  }
}
