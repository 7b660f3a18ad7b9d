/** A dialog that shows the text of a filter as conditions, and writes it. */

import { useState } from "preact/hooks";
import {
  type Condition,
  emptyGroup,
  FilterMistake,
  type Group,
  type Item,
  OPERATORS,
  type Operator,
  parseFilter,
  type Value,
  writeFilter,
} from "../../lib/filter";
import { Dialog } from "../../parts/basic";
import { type TableField, useFields } from "./use_fields";

interface Props {
  text: string;
  onApply: (text: string) => void;
  onClose: () => void;
}

export function FilterBuilder({ text, onApply, onClose }: Props) {
  const [start] = useState(() => read(text));
  const [root, setRoot] = useState<Group>(start.group);
  const [search, setSearch] = useState("");
  const { fields } = useFields(search);
  const written = writeFilter(root);
  return (
    <Dialog title="Filter" onClose={onClose} isWide>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          onApply(written);
          onClose();
        }}
      >
        {start.mistake === "" ? null : (
          <p class="problem" role="alert">
            The text cannot be shown as conditions: {start.mistake}. What you build here replaces it.
          </p>
        )}
        <datalist id="filter-fields">
          {fields.map((field) => (
            <option key={field.name} value={field.name}>
              {field.meaning}
            </option>
          ))}
        </datalist>
        <GroupEditor group={root} fields={fields} onField={setSearch} onChange={setRoot} name="Filter" />
        <p>
          As text: <code class="whole">{written || "all experiments"}</code>
        </p>
        <div class="row end">
          <button type="button" onClick={onClose}>
            Back
          </button>
          <button type="submit" class="main">
            Apply
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function read(text: string): { group: Group; mistake: string } {
  try {
    const group = parseFilter(text);
    return { group: group.items.length === 0 ? { ...group, items: [newCondition()] } : group, mistake: "" };
  } catch (failure) {
    if (!(failure instanceof FilterMistake)) throw failure;
    return { group: { ...emptyGroup(), items: [newCondition()] }, mistake: failure.message };
  }
}

function newCondition(): Condition {
  return { kind: "condition", field: "", operator: "=", values: [] };
}

interface EditorProps {
  fields: TableField[];
  /** Called with what the reader types as the name of a field. */
  onField: (text: string) => void;
  /** How a screen reader names it. */
  name: string;
}

function GroupEditor({ group, onChange, ...rest }: EditorProps & { group: Group; onChange: (group: Group) => void }) {
  const set = (index: number, item: Item | null) => {
    const items = group.items.flatMap((each, at) => (at !== index ? [each] : item === null ? [] : [item]));
    onChange({ ...group, items });
  };
  const add = (item: Item) => onChange({ ...group, items: [...group.items, item] });
  return (
    <fieldset class="group">
      <legend class="hidden">{rest.name}</legend>
      <div class="row">
        <select
          aria-label={`${rest.name}: how many of these hold`}
          value={`${group.isNegated ? "not " : ""}${group.joint}`}
          onChange={(event) => {
            const value = event.currentTarget.value;
            onChange({ ...group, isNegated: value.startsWith("not"), joint: value.endsWith("or") ? "or" : "and" });
          }}
        >
          <option value="and">all of these hold (and)</option>
          <option value="or">one of these holds (or)</option>
          <option value="not or">none of these holds (not or)</option>
          <option value="not and">not all of these hold (not and)</option>
        </select>
      </div>
      {group.items.map((item, index) => {
        const name = `${rest.name} ${index + 1}`;
        return (
          <div key={index} class="row item">
            {item.kind === "condition" ? (
              <ConditionEditor {...rest} name={name} condition={item} onChange={(next) => set(index, next)} />
            ) : (
              <GroupEditor {...rest} name={name} group={item} onChange={(next) => set(index, next)} />
            )}
            <button type="button" class="plain" aria-label={`Remove ${name}`} onClick={() => set(index, null)}>
              ×
            </button>
          </div>
        );
      })}
      <div class="row">
        <button type="button" onClick={() => add(newCondition())}>
          Add a condition
        </button>
        <button type="button" onClick={() => add({ ...emptyGroup(), joint: "or", items: [newCondition()] })}>
          Add a group
        </button>
      </div>
    </fieldset>
  );
}

interface ConditionProps extends EditorProps {
  condition: Condition;
  onChange: (condition: Condition) => void;
}

function ConditionEditor({ condition, fields, name, onField, onChange }: ConditionProps) {
  const choices = fields.find((field) => field.name === condition.field)?.choices ?? [];
  const isList = condition.operator === "in" || condition.operator === "not in";
  return (
    <>
      <input
        aria-label={`${name}: field`}
        list="filter-fields"
        placeholder="field, as hp.lr"
        value={condition.field}
        onInput={(event) => {
          onField(event.currentTarget.value);
          onChange({ ...condition, field: event.currentTarget.value.trim() });
        }}
      />
      <select
        aria-label={`${name}: comparison`}
        value={condition.operator}
        onChange={(event) => {
          const operator = event.currentTarget.value as Operator;
          const keepsAll = operator === "in" || operator === "not in";
          onChange({ ...condition, operator, values: keepsAll ? condition.values : condition.values.slice(0, 1) });
        }}
      >
        {OPERATORS.map((operator) => (
          <option key={operator}>{operator}</option>
        ))}
      </select>
      {choices.length > 0 && !isList && ["=", "!="].includes(condition.operator) ? (
        <select
          aria-label={`${name}: value`}
          value={condition.values[0]?.text ?? ""}
          onChange={(event) => onChange({ ...condition, values: valuesOf(event.currentTarget.value, [], false) })}
        >
          <option value="">choose</option>
          {[...choices, "null"].map((choice) => (
            <option key={choice}>{choice}</option>
          ))}
        </select>
      ) : (
        <input
          aria-label={isList ? `${name}: values, separated by commas` : `${name}: value`}
          placeholder={isList ? "values, with commas" : "value"}
          value={condition.values.map((value) => value.text).join(", ")}
          onInput={(event) => {
            onChange({ ...condition, values: valuesOf(event.currentTarget.value, condition.values, isList) });
          }}
        />
      )}
    </>
  );
}

/** Reads values as they are typed. A text that was quoted before stays so, as 5 and "5" differ. */
function valuesOf(text: string, former: Value[], isList: boolean): Value[] {
  const parts = isList ? text.split(",").map((part) => part.trimStart()) : [text];
  const given = parts.length === 1 && parts[0] === "" ? [] : parts;
  return given.map((part, index) => ({ text: part, isQuoted: former[index]?.isQuoted ?? false }));
}
