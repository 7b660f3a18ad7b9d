/** A dialog in which columns are shown, hidden, moved, pinned, and given a width. */

import { useState } from "preact/hooks";
import { type Layout, MAX_WIDTH, MIN_WIDTH, moved, resized, toggled } from "../../lib/columns";
import { TRAINING } from "../../lib/training_values";
import { Dialog } from "../../parts/basic";
import { FIXED, fieldOf, isField } from "./fields";
import { useFields } from "./use_fields";

interface Props {
  layout: Layout;
  onChange: (layout: Layout) => void;
  onStandard: () => void;
  onClose: () => void;
}

export function ColumnChoice({ layout, onChange, onStandard, onClose }: Props) {
  const [search, setSearch] = useState("");
  const [training, setTraining] = useState("");
  const { fields, total } = useFields(search);
  const names = fields.map((field) => field.name).filter(isField);
  // Those that the page has a title for come in its order, and hyperparameters and metrics after them.
  const ordered = [...FIXED.filter((name) => names.includes(name)), ...names.filter((name) => !FIXED.includes(name))];
  const hidden = ordered.filter((name) => !layout.ids.includes(name));
  return (
    <Dialog title="Columns" onClose={onClose} isWide>
      <div class="stack">
        <ul class="plain scroll tall" aria-label="Shown">
          {layout.ids.map((id, index) => {
            const title = fieldOf(id).title;
            return (
              <li key={id} class="row">
                <label>
                  <input type="checkbox" checked onChange={() => onChange(toggled(layout, id))} /> {title}
                </label>
                <button
                  type="button"
                  class="plain"
                  aria-label={`Move ${title} left`}
                  disabled={index === 0}
                  onClick={() => onChange(moved(layout, id, -1))}
                >
                  ←
                </button>
                <button
                  type="button"
                  class="plain"
                  aria-label={`Move ${title} right`}
                  disabled={index === layout.ids.length - 1}
                  onClick={() => onChange(moved(layout, id, 1))}
                >
                  →
                </button>
                <label>
                  <span class="hidden">Width of {title} in pixels</span>
                  <input
                    type="number"
                    class="short"
                    min={MIN_WIDTH}
                    max={MAX_WIDTH}
                    step={10}
                    value={layout.widths[id] ?? fieldOf(id).width}
                    onChange={(event) => onChange(resized(layout, id, Number(event.currentTarget.value)))}
                  />
                </label>
                {index < layout.numPinned ? <span class="quiet">pinned</span> : null}
              </li>
            );
          })}
        </ul>
        <label>
          Find a field, hyperparameter or metric{" "}
          <input type="search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
        </label>
        <ul class="plain scroll tall" aria-label="Not shown">
          {hidden.map((id) => (
            <li key={id}>
              <label>
                <input type="checkbox" checked={false} onChange={() => onChange(toggled(layout, id))} />{" "}
                {fieldOf(id).title}
              </label>
            </li>
          ))}
        </ul>
        {total > fields.length ? <p>{total - fields.length} more are found by typing a part of their names.</p> : null}
        <form
          class="row"
          onSubmit={(event) => {
            event.preventDefault();
            const id = TRAINING + training.trim();
            if (training.trim() !== "" && !layout.ids.includes(id)) onChange(toggled(layout, id));
            setTraining("");
          }}
        >
          <label>
            Training metric, as <code>loss</code>{" "}
            <input value={training} onInput={(event) => setTraining(event.currentTarget.value)} />
          </label>
          <button type="submit">Add</button>
        </form>
        <label>
          Columns that stay at the left{" "}
          <select
            value={layout.numPinned}
            onChange={(event) => onChange({ ...layout, numPinned: Number(event.currentTarget.value) })}
          >
            {[0, 1, 2, 3].map((number) => (
              <option key={number} value={number}>
                {number}
              </option>
            ))}
          </select>
        </label>
        <div class="row end">
          <button type="button" onClick={onStandard}>
            Standard
          </button>
          <button type="button" class="main" onClick={onClose}>
            Close
          </button>
        </div>
      </div>
    </Dialog>
  );
}
