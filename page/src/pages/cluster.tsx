/** The cluster: its services and pools, its slots as a map, and what was used. */

import { useAgents, useQueue } from "../api/changes";
import { api } from "../api/client";
import { useLive } from "../api/live";
import { listPools, listSlots } from "../lib/slots";
import { count } from "../lib/text";
import { Age, Empty, Loading, Name, Problem } from "../parts/basic";
import { Head, Same, TableFrame } from "../parts/form";
import { Tabs } from "../parts/tabs";
import { href } from "../router";
import { SlotMap } from "./slot_map";
import { Usage } from "./usage";
import "../administration.css";

export function Cluster() {
  return (
    <>
      <h1>Cluster</h1>
      <Tabs
        label="Parts of the cluster"
        tabs={[
          { id: "slots", title: "Slots", show: () => <SlotMap /> },
          { id: "pools", title: "Pools", show: () => <Pools /> },
          { id: "services", title: "Services", show: () => <Services /> },
          { id: "usage", title: "Usage", show: () => <Usage /> },
        ]}
      />
    </>
  );
}

function Pools() {
  const agents = useAgents();
  const queue = useQueue();
  if (agents.value === null || queue === null) {
    return agents.error ? <Problem error={agents.error} /> : <Loading />;
  }
  const pools = listPools(listSlots(agents.value, Date.now()), queue);
  return (
    <>
      <Problem error={agents.error} />
      {pools.length === 0 ? <Empty>No agent has registered; start one: gangline-agent --help</Empty> : null}
      <TableFrame label="Pools">
        <Head titles={["Pool", "Agents", "Slots", "Held", "Free", "Waiting trials"]} />
        <tbody>
          {pools.map((pool) => (
            <tr key={pool.name}>
              <th scope="row">
                <a href={href(`/queue?pool=${encodeURIComponent(pool.name)}`)}>
                  <Name text={pool.name} />
                </a>
              </th>
              <td class="number">{pool.agents}</td>
              <td class="number">{pool.slots}</td>
              <td class="number">{pool.held}</td>
              <td class="number">{pool.free}</td>
              <td class="number">{pool.waiting}</td>
            </tr>
          ))}
        </tbody>
      </TableFrame>
      <Same command="gangline agent list" />
    </>
  );
}

function Services() {
  const live = useLive("cluster", (signal) => api.get("/api/v1/cluster", { signal }), 3);
  if (live.value === null) return live.error ? <Problem error={live.error} /> : <Loading />;
  const { etcd, leader, services, version, cluster } = live.value;
  return (
    <>
      <Problem error={live.error} />
      <dl>
        <dt>Leading scheduler</dt>
        <dd>
          {leader === null ? (
            <span class="problem">✗ none leads; work goes on, and nothing new starts</span>
          ) : (
            `✓ ${leader.id}`
          )}
        </dd>
        <dt>etcd</dt>
        <dd class={etcd.isAvailable ? "" : "problem"}>
          {etcd.isAvailable ? "✓" : "✗"} {etcd.numAnswering} of {count(etcd.numMembers, "member")} answer
          {etcd.problem === "" ? "" : `: ${etcd.problem}`}
        </dd>
        <dt>Slots</dt>
        <dd>
          {live.value.numSlotsUsed} of {live.value.numSlots} held, on {count(live.value.numAgents, "agent")};{" "}
          {count(live.value.numPending, "request")} waiting
        </dd>
        <dt>Version</dt>
        <dd>{version}</dd>
        <dt>Cluster</dt>
        <dd>{cluster?.id ?? "–"}</dd>
      </dl>
      <TableFrame label="Services">
        <Head titles={["Service", "Id", "HTTP", "gRPC", "Metrics", "Started"]} />
        <tbody>
          {services.map((service) => (
            <tr key={`${service.kind} ${service.id}`}>
              <td>
                {service.kind}
                {service.id === leader?.id ? " (leads)" : ""}
              </td>
              <th scope="row">
                <Name text={service.id} />
              </th>
              <td>{service.httpAddress || "–"}</td>
              <td>{service.grpcAddress || "–"}</td>
              <td>{service.metricsAddress || "–"}</td>
              <td>
                <Age at={service.startTime} />
              </td>
            </tr>
          ))}
        </tbody>
      </TableFrame>
      <Same command="gangline status" />
    </>
  );
}
