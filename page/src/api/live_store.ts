/**
 * The stream of changes, which all views share: one connection for the whole page.
 *
 * A view that has read a page subscribes with the page's cursor. One without a cursor reads when `onReset` is called.
 * Deltas say the newest state of a row, so a view may get one twice. Two connections are open only while two views
 * follow the same table with different filters.
 */

import { signal } from "@preact/signals";
import { addressOf } from "./client";
import type { ServerEvent } from "./event_text";
import { type Changes, grouped, type Parts, parametersOf, selected, startOf } from "./live_parts";
import { type Follower, follow } from "./stream";

export interface Subscription {
  parts: Parts;
  /** That of the page that was read before; empty if the view has read nothing. */
  cursor: string;
  onChanges: (changes: Changes) => void;
  /**
   * Changes may have been missed: read anew. Later changes come all the same. Called without a cursor as soon as the
   * stream is open, and where the gateway refuses it.
   */
  onReset: () => void;
}

interface Member extends Subscription {
  /** Whether `onReset` is still to be called for the first reading. */
  isUnread: boolean;
}

interface Connection {
  key: string;
  members: Set<Member>;
  follower: Follower;
  /** Why the gateway refuses it, or cannot send a part; empty while all is well. */
  problem: string;
}

/** Why what the views show is not kept up to date; empty while it is. */
export const streamProblem = signal("");

const members = new Set<Member>();
let connections: Connection[] = [];
let isArranging = false;

/** Follows changes until the returned function is called. */
export function subscribe(subscription: Subscription): () => void {
  const member: Member = { ...subscription, isUnread: subscription.cursor === "" };
  members.add(member);
  arrangeSoon();
  return () => {
    members.delete(member);
    for (const connection of connections) connection.members.delete(member);
    arrangeSoon();
  };
}

function arrangeSoon(): void {
  if (isArranging) return;
  isArranging = true;
  // A change of the view ends and begins subscriptions; one connection follows from all of them.
  setTimeout(() => {
    isArranging = false;
    arrange();
  });
}

function arrange(): void {
  const former = connections;
  const groups = grouped(members).map(({ parts, members: wanted }) => {
    const key = JSON.stringify(parametersOf(parts));
    const isFormer = (one: Connection) => one.key === key && wanted.every((member) => one.members.has(member));
    return { key, parts, wanted, kept: former.find(isFormer) };
  });
  // The others end before new ones begin: a member must not get an event of both.
  for (const connection of former) {
    if (!groups.some(({ kept }) => kept === connection)) connection.follower.stop();
  }
  connections = groups.map(({ key, parts, wanted, kept }) => kept ?? open(key, parts, wanted));
  showProblem();
}

function open(key: string, parts: Parts, wanted: Member[]): Connection {
  const connection: Connection = { key, members: new Set(wanted), follower: { stop: () => {} }, problem: "" };
  const address = addressOf("/api/v1/stream", {}, { ...parametersOf(parts), cursor: startOf(wanted) });
  connection.follower = follow(
    address,
    (event) => {
      if (event.name !== "problem") return pass(event, connection.members);
      connection.problem = (JSON.parse(event.data) as { detail: string }).detail;
      showProblem();
    },
    (error) => {
      connection.problem = error?.message ?? "";
      showProblem();
      if (error !== null) for (const member of connection.members) readFirst(member);
    },
  );
  return connection;
}

function pass(event: ServerEvent, receivers: Set<Member>): void {
  const changes = event.name === "changes" ? (JSON.parse(event.data) as Changes) : null;
  for (const member of [...receivers]) {
    if (event.id !== "") member.cursor = event.id;
    const own = changes === null ? null : selected(changes, member.parts);
    if (event.name === "open") readFirst(member);
    else if (event.name === "reset") member.onReset();
    else if (own !== null) member.onChanges(own);
  }
}

function readFirst(member: Member): void {
  if (!member.isUnread) return;
  member.isUnread = false;
  member.onReset();
}

function showProblem(): void {
  streamProblem.value = connections.find(({ problem }) => problem !== "")?.problem ?? "";
}
