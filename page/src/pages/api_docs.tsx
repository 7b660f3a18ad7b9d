export function ApiDocs() {
  return <h1>ApiDocs</h1>;
}
