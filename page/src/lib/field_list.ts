/** PURE: names of fields as a table's parameters `fields` and `sort` take them. */

/** The most fields of one request, as the gateway allows. */
export const MOST_FIELDS = 200;

export function writeFields(names: string[]): string {
  return names
    .slice(0, MOST_FIELDS)
    .map((name) => name.replaceAll(",", "\\,"))
    .join(",");
}
