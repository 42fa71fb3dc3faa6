import { Empty } from "../parts/empty";

export function CompareView() {
  return <Empty title="Not built yet." />;
}
