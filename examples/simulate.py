"""Ask a question of a network that does not exist yet: what do more mesh peers cost?"""

from dataclasses import replace

from luxrelay.sim import load_scenario, simulate

scenario = load_scenario("propagation").resized(60)
scenario = replace(scenario, traffic=replace(scenario.traffic, messages=10))
for least in (2, 4, 6):
    changed = replace(scenario, gossip={"d_lo": least, "d_out": 1})
    measures = simulate(changed).measures
    print(
        f"d_lo = {least}: 99 % within {measures['p99_ms']:.0f} ms, "
        f"{measures['duplicates_mean']:.1f} duplicates, "
        f"{measures['bytes_per_node_s']:.0f} bytes a second and node"
    )
