/** Views of the list that a user keeps under a name. The address has all that a view has, and the id of the view. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, api, type Schemas } from "../../api/client";
import { contentOf, isSameQuery, type ListQuery, readContent } from "../../lib/list_query";
import { Dialog } from "../../parts/basic";
import { place, setQuery } from "../../router";
import { complain, say } from "../../toast";

type SavedView = Schemas["SavedView"];
const LIST = "experiments";

export function SavedViews({ query }: { query: ListQuery }) {
  const [views, setViews] = useState<SavedView[]>([]);
  const [isNaming, setNaming] = useState(false);
  const viewId = place.value.query.get("view") ?? "";
  const current = views.find((view) => view.id === viewId);
  const load = () =>
    api.get("/api/v1/saved-views", { query: { list: LIST } }).then((answer) => setViews(answer.views), complain);
  useEffect(() => void load(), []);
  useEffect(() => {
    // An address with the id alone, which may be another user's, opens the view as it is now.
    if (viewId === "" || Object.keys(contentOf(query)).length > 0) return;
    api
      .get("/api/v1/saved-views/{view_id}", { parts: { view_id: viewId } })
      .then(({ view }) => setQuery(readContent(view.content)), complain);
  }, [viewId]);

  const choose = (id: string) => {
    const view = views.find((each) => each.id === id);
    setQuery({ ...readContent(view?.content), view: id });
  };
  const attempt = async (action: () => Promise<void>) => {
    try {
      await action();
      await load();
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      complain(failure);
    }
  };
  const save = (name: string) =>
    attempt(async () => {
      const { view } = await api.post("/api/v1/saved-views", { body: { list: LIST, name, content: contentOf(query) } });
      setQuery({ view: view.id });
      say(`the view ${view.name} is saved; the address opens it for everybody`);
      setNaming(false);
    });
  const update = (view: SavedView) =>
    attempt(async () => {
      const body = { version: view.version, content: contentOf(query) } as Schemas["SavedViewPatch"];
      await api.patch("/api/v1/saved-views/{view_id}", { parts: { view_id: view.id }, body });
      say(`the view ${view.name} is saved as it is shown`);
    });
  const remove = (view: SavedView) =>
    attempt(async () => {
      await api.delete("/api/v1/saved-views/{view_id}", { parts: { view_id: view.id } });
      setQuery({ view: "" });
      say(`the view ${view.name} is deleted`);
    });

  const isChanged = current !== undefined && !isSameQuery(readContent(current.content), query);
  return (
    <div class="row">
      <label>
        View{" "}
        <select value={current?.id ?? ""} onChange={(event) => choose(event.currentTarget.value)}>
          <option value="">{viewId !== "" && current === undefined ? "of another user" : "none"}</option>
          {views.map((view) => (
            <option key={view.id} value={view.id}>
              {view.name}
              {view === current && isChanged ? " (changed)" : ""}
            </option>
          ))}
        </select>
      </label>
      {current !== undefined && isChanged ? (
        <button type="button" onClick={() => update(current)}>
          Save view
        </button>
      ) : null}
      <button type="button" onClick={() => setNaming(true)}>
        Save view as…
      </button>
      {current === undefined ? null : (
        <button type="button" onClick={() => remove(current)}>
          Delete view
        </button>
      )}
      {isNaming ? <Naming onSave={save} onClose={() => setNaming(false)} /> : null}
    </div>
  );
}

function Naming({ onSave, onClose }: { onSave: (name: string) => Promise<void>; onClose: () => void }) {
  const [name, setName] = useState("");
  return (
    <Dialog title="Save this view" onClose={onClose}>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void onSave(name.trim());
        }}
      >
        <label>
          Name <input required maxLength={100} value={name} onInput={(event) => setName(event.currentTarget.value)} />
        </label>
        <p>It keeps the filter, the order and the columns.</p>
        <div class="row end">
          <button type="button" onClick={onClose}>
            Back
          </button>
          <button type="submit" class="main" disabled={name.trim() === ""}>
            Save
          </button>
        </div>
      </form>
    </Dialog>
  );
}
