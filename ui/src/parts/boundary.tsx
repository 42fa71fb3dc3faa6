import { Component, type ComponentChildren } from "preact";

interface State {
  error: string | null;
}

/** Keeps a mistake in one view from taking the whole page down. */
export class Boundary extends Component<{ children: ComponentChildren }, State> {
  override state: State = { error: null };

  override componentDidCatch(error: unknown): void {
    console.error(error);
    this.setState({ error: error instanceof Error ? error.message : String(error) });
  }

  override render() {
    if (this.state.error === null) return this.props.children;
    return (
      <p class="trouble" role="alert">
        This view has a problem: {this.state.error}. The other views still work.
      </p>
    );
  }
}
