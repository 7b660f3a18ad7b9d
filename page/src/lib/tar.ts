/** PURE: reads the files of a tar archive, such as an experiment's code. */

export interface TarFile {
  path: string;
  body: Uint8Array;
}

const BLOCK = 512;

/** Returns the plain files in the order of their paths. Throws Error for bytes that are no whole archive. */
export function readTar(bytes: Uint8Array): TarFile[] {
  const files: TarFile[] = [];
  let longPath = "";
  for (let at = 0; at + BLOCK <= bytes.length; ) {
    const head = bytes.subarray(at, at + BLOCK);
    if (head.every((byte) => byte === 0)) break;
    const size = sizeOf(head);
    const body = bytes.subarray(at + BLOCK, at + BLOCK + size);
    if (!Number.isSafeInteger(size) || body.length < size) throw new Error("the archive of the code is broken");
    at += BLOCK + Math.ceil(size / BLOCK) * BLOCK;
    const kind = String.fromCharCode(head[156] ?? 0);
    if (kind === "x") longPath = pathOfRecords(body) || longPath;
    else if (kind === "L") longPath = text(body);
    else {
      // Folders and links have no lines to show.
      if (kind === "0" || kind === "\0") files.push({ path: longPath || shortPath(head), body });
      longPath = "";
    }
  }
  return files.map(({ path, body }) => ({ path: path.replace(/^(\.\/)+/, ""), body })).sort(byPath);
}

function byPath(a: TarFile, b: TarFile): number {
  return a.path < b.path ? -1 : a.path > b.path ? 1 : 0;
}

function shortPath(head: Uint8Array): string {
  const prefix = text(head.subarray(257, 262)) === "ustar" ? text(head.subarray(345, 500)) : "";
  const name = text(head.subarray(0, 100));
  return prefix === "" ? name : `${prefix}/${name}`;
}

/** Reads an octal number; GNU tar writes greater ones in bytes, after a first bit that is set. */
function sizeOf(head: Uint8Array): number {
  const field = head.subarray(124, 136);
  if (((field[0] ?? 0) & 0x80) === 0) return Number.parseInt(text(field).trim() || "0", 8);
  return field.subarray(1).reduce((sum, byte) => sum * 256 + byte, 0);
}

/** Reads `path` of records such as "18 path=folder/a\n". */
function pathOfRecords(body: Uint8Array): string {
  for (let at = 0; at < body.length; ) {
    const space = body.indexOf(0x20, at);
    const length = Number(text(body.subarray(at, space)));
    if (space < 0 || !(length > 0)) return "";
    const record = new TextDecoder().decode(body.subarray(space + 1, at + length - 1));
    if (record.startsWith("path=")) return record.slice(5);
    at += length;
  }
  return "";
}

function text(field: Uint8Array): string {
  const end = field.indexOf(0);
  return new TextDecoder().decode(end < 0 ? field : field.subarray(0, end));
}

/** Returns the text of a file; null if it is none. */
export function textOf(body: Uint8Array): string | null {
  if (body.subarray(0, 8000).includes(0)) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(body);
  } catch {
    return null;
  }
}
