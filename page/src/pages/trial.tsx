export function Trial() {
  return <h1>Trial</h1>;
}
