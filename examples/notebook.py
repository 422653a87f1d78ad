# %% [markdown]
# # How many instances do chats need?
#
# A notebook in cells (`# %%`): run it in an editor that supports them, or as a script. It simulates chats and bulk requests on
# clusters of growing size, looks at latencies by class, and compares a larger cluster with admission by classes.

# %%
import polars as pl

import maitred

CHATS = maitred.Targets(ttft_ms=500, tpot_ms=50)
SLO = maitred.Slo(classes={"interactive": CHATS, "bulk": maitred.Targets(e2e_ms=60_000)})
INSTANCE = maitred.InstanceConfig(max_num_seqs=64, total_kv_blocks=6_000)


def workload():
    """Return a minute of 60 requests per second, a third of them chats. A workload is read once, so each run makes its own."""
    return maitred.synthetic(
        rate=60,
        num_requests=3_600,
        input_tokens="lognormal:600,500",
        output_tokens="lognormal:250,200",
        class_mix="interactive:1,bulk:2",
    )


# %% [markdown]
# ## One run
#
# The same arguments give the same result, to the byte. A notebook displays a `Result`; its figures are in `summary()`.

# %%
result = maitred.simulate(workload(), maitred.ClusterConfig(num_instances=2), INSTANCE, slo=SLO)
print(result)
summary = result.summary()
for label, group in summary.by[maitred.By.CLASS].items():
    print(f"{label}: TTFT p99 {group.ttft.p99 / 1000:,.0f} ms, {group.attainment:.1%} within the SLO")

# %% [markdown]
# ## How many?
#
# The smallest cluster on which 99 % of the chats stay within their objective.

# %%
for instances in range(1, 7):
    run = maitred.simulate(workload(), maitred.ClusterConfig(num_instances=instances), INSTANCE, slo=SLO, sample_every_ms=None)
    chats = run.summary().by[maitred.By.CLASS]["interactive"]
    print(f"{instances} instances: {chats.attainment:.1%} of the chats, TTFT p99 {chats.ttft.p99 / 1000:,.0f} ms")
    if chats.attainment >= 0.99:
        break

# %% [markdown]
# ## Or let the chats go first
#
# Admission by classes holds bulk requests back while there are chats, so two instances are enough for the chats. The price:
# some bulk requests lose their slot to a chat.

# %%
classes = maitred.simulate(workload(), maitred.ClusterConfig(num_instances=2, capacity=100), INSTANCE, slo=SLO)
for label, group in classes.summary().by[maitred.By.CLASS].items():
    print(f"{label}: TTFT p99 {group.ttft.p99 / 1000:,.0f} ms, {group.attainment:.1%} within the SLO")

# %% [markdown]
# ## Every request
#
# `rows` has numpy columns; `to_frame()` returns them as a polars frame (`pip install 'maitred[frames]'`).

# %%
frame = result.to_frame().with_columns(ttft_ms=pl.col("ttft_us") / 1000)
print(frame.group_by("class", maintain_order=True).agg(pl.len(), pl.col("ttft_ms").quantile(0.99)))

# %% [markdown]
# ## To show to others
#
# A page that opens in any browser, and the charts alone (`pip install 'maitred[plots]'`).

# %%
result.report("report.html")
result.plot("charts.png")
