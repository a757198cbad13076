// The load balancing policy: round robin, and the repetition of a call has another address.

import { type ChannelOptions, experimental, type Metadata, type ServiceError, status } from "@grpc/grpc-js";

import { reasonOf } from "./codec.js";

type Helper = experimental.ChannelControlHelper;
type Config = experimental.TypedLoadBalancingConfig;

/** The name of the policy in a service config. */
export const POLICY = "tollgate_round_robin";

// The address of the attempt before, in the metadata of a repetition. It is not sent.
const AVOIDED = "tollgate-avoided-address";
const NO_OTHER = "no other address is connected";

const ROUND_ROBIN = experimental.parseLoadBalancingConfig({ round_robin: {} });

/** Marks a call as a repetition. */
export function avoid(metadata: Metadata, address: string): void {
  metadata.set(AVOIDED, address);
}

/** Whether a call has charged nothing, because a replica has answered that it decides no calls yet. */
export function hasChargedNothing({ code, metadata }: ServiceError): boolean {
  return code === status.UNAVAILABLE && ["NO_RULES", "JOINING"].includes(reasonOf(metadata));
}

/** Whether a repetition has found no other address. */
export function foundNoOther({ details }: ServiceError): boolean {
  return details === NO_OTHER;
}

class Policy implements experimental.LoadBalancer {
  readonly #child: experimental.ChildLoadBalancerHandler;

  constructor(helper: Helper) {
    const updateState: Helper["updateState"] = (state, picker, message) =>
      helper.updateState(state, { pick: (call) => pick(picker, call) }, message);
    const child = experimental.createChildChannelControlHelper(helper, { updateState });
    this.#child = new experimental.ChildLoadBalancerHandler(child);
  }

  updateAddressList(
    endpoints: experimental.StatusOr<experimental.Endpoint[]>,
    _config: Config,
    options: ChannelOptions,
    note: string,
  ): boolean {
    return this.#child.updateAddressList(endpoints, ROUND_ROBIN, options, note);
  }

  exitIdle(): void {
    this.#child.exitIdle();
  }

  resetBackoff(): void {
    this.#child.resetBackoff();
  }

  destroy(): void {
    this.#child.destroy();
  }

  getTypeName(): string {
    return POLICY;
  }
}

// Round robin picks the avoided address a second time only if there is no other one.
function pick(picker: experimental.Picker, call: experimental.PickArgs): experimental.PickResult {
  const [avoided] = call.metadata.get(AVOIDED);
  call.metadata.remove(AVOIDED);
  const isAvoided = ({ subchannel }: experimental.PickResult) =>
    subchannel !== null && subchannel.getAddress() === avoided;
  const first = picker.pick(call);
  if (!isAvoided(first)) return first;
  const second = picker.pick(call);
  if (!isAvoided(second)) return second;
  return new experimental.UnavailablePicker({ code: status.UNAVAILABLE, details: NO_OTHER }).pick(call);
}

class PolicyConfig implements Config {
  getLoadBalancerName(): string {
    return POLICY;
  }

  toJsonObject(): object {
    return { [POLICY]: {} };
  }

  static createFromJson(): PolicyConfig {
    return new PolicyConfig();
  }
}

experimental.registerLoadBalancerType(POLICY, Policy, PolicyConfig);
