// Numbers that the caller may set.

/** The range of a number, and what it is if the caller leaves it out. */
export interface NumberRange {
  readonly min: number;
  readonly max: number;
  readonly usual: number;
}

/** The number that was given or is usual. Throws an error that names it if it is not in its range. */
export function numberOption(name: string, given: number | undefined, { min, max, usual }: NumberRange): number {
  const value = given ?? usual;
  if (!Number.isInteger(value) || value < min || value > max)
    throw new RangeError(`${name}: not a whole number from ${min} to ${max}`);
  return value;
}
