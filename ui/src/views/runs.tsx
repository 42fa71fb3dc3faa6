import { Empty } from "../parts/empty";

export function RunsView() {
  return <Empty title="Not built yet." />;
}
