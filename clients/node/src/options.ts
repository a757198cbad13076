// Numbers that the caller may set.

/** The longest time for which the server holds hits. */
export const TTL_MAX_MS = 86_400_000;

/** The range of a number, and what it is if the caller leaves it out. */
export interface NumberRange {
  readonly min: number;
  readonly max: number;
  readonly usual: number;
}

/** The numbers that were given or are usual. Throws an error that names one that is not in its range. */
export function numberOptions<Name extends string>(
  ranges: Record<Name, NumberRange>,
  given: { readonly [Each in NoInfer<Name>]?: number | undefined },
): Record<Name, number> {
  const names = Object.keys(ranges) as Name[];
  const numbers = names.map((name) => {
    const { min, max, usual } = ranges[name];
    const value = given[name] ?? usual;
    if (!Number.isInteger(value) || value < min || value > max)
      throw new RangeError(`${name}: not a whole number from ${min} to ${max}`);
    return [name, value];
  });
  return Object.fromEntries(numbers);
}
