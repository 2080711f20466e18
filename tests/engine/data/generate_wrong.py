"""Functions that generate completions, with one bug each."""

import torch
import torch.nn.functional as F

EXPECTED = {
    "never_stops": "GEN-NO-STOP",
    "stops_only_when_all_stop": "GEN-NO-STOP",
    "config_without_eos": "GEN-NO-STOP",
    "eos_cut_off": "GEN-EOS-EDGE",
    "eos_left_in": "GEN-EOS-EDGE",
    "mask_not_passed": "GEN-PADDING-SEEN",
    "padded_on_the_right": "GEN-PADDING-SEEN",
    "loop_without_mask": "GEN-PADDING-SEEN",
    "cut_at_real_length": "GEN-PROMPT-EDGE",
    "first_token_lost": "GEN-PROMPT-EDGE",
    "last_prompt_token_kept": "GEN-PROMPT-EDGE",
    "prompt_echoed": "GEN-PROMPT-ECHO",
    "text_with_prompt": "GEN-PROMPT-ECHO",
    "prompt_counted": "GEN-BUDGET-TOTAL",
    "one_token_short": "GEN-BUDGET-SHIFT",
    "samples_tiled": "GEN-TILED",
    "sorted_and_left_so": "GEN-ORDER",
    "cache_fed_twice": "GEN-OTHER-TOKENS",
    "logits_of_first_position": "GEN-OTHER-TOKENS",
    "temperature_not_passed": "GEN-TEMPERATURE",
    "temperature_inverted": "GEN-TEMPERATURE",
    "temperature_twice": "GEN-TEMPERATURE",
    "do_sample_forgotten": "GEN-TEMPERATURE",
    "softmax_first": "GEN-TEMPERATURE",
    "top_p_not_passed": "GEN-TRUNCATION",
    "top_k_off_by_one": "GEN-TRUNCATION",
    "nucleus_without_crossing": "GEN-TRUNCATION",
    "nucleus_ascending": "GEN-TRUNCATION",
    "sampler_top_k_complement": "GEN-TRUNCATION",
    "one_sample_repeated": "GEN-SEED-REPEATS",
    "same_stream_for_each_sample": "GEN-SEED-REPEATS",
    "stream_per_group_restarts": "GEN-SEED-REPEATS",
    "worker_streams_restart": "GEN-SEED-REPEATS",
    "seeded_in_every_call": "GEN-SEED-RESTARTS",
    "seed_never_used": "GEN-SEED-IGNORED",
    "seed_overwritten": "GEN-SEED-IGNORED",
    "workers_matter": "GEN-WORKERS-MATTER",
    "logps_of_the_next": "GEN-LOGP-SHIFT",
    "logps_of_the_best": "GEN-LOGP-OTHER",
    "logps_raw": "GEN-LOGP-RAW",
    "probabilities": "GEN-LOGP-OTHER",
    "train_switched_on": "GEN-MODE-LEFT",
    "eval_after_generate": "GEN-DROPOUT",
    "graph_kept": "GEN-GRAPH-KEPT",
}


def _encode(tokenizer, prompts):
    return tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")


@torch.no_grad()
def never_stops(model, input_ids, max_new_tokens, temperature=1.0, eos_token_id=1, pad_token_id=0):
    """New tokens [B, C]; a row ends at its eos and is padded behind it."""
    ids = input_ids
    done = torch.zeros(len(ids), dtype=torch.bool)
    for _ in range(max_new_tokens):
        nxt = torch.multinomial((model(ids).logits[:, -1] / temperature).softmax(-1), 1)
        done |= nxt.squeeze(1) == pad_token_id
        ids = torch.cat([ids, torch.where(done[:, None], pad_token_id, nxt)], 1)
    return ids[:, input_ids.size(1) :]


@torch.no_grad()
def stops_only_when_all_stop(model, tokenizer, prompts, max_new_tokens=32, temperature=1.0):
    """A completion ends with its eos."""
    enc = _encode(tokenizer, prompts)
    ids, mask = enc["input_ids"], enc["attention_mask"]
    for _ in range(max_new_tokens):
        logits = model(input_ids=ids, attention_mask=mask).logits[:, -1] / temperature
        nxt = torch.multinomial(logits.softmax(-1), 1)
        ids, mask = torch.cat([ids, nxt], 1), torch.cat([mask, torch.ones_like(nxt)], 1)
        if (nxt == tokenizer.eos_token_id).all():
            break
    return ids[:, enc["input_ids"].size(1) :].tolist()


@torch.no_grad()
def config_without_eos(model, tokenizer, prompts, max_new_tokens=32, temperature=1.0):
    """Completions that end at the tokenizer's eos or after max_new_tokens."""
    enc = _encode(tokenizer, prompts)
    model.generation_config.eos_token_id = []
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    return seq[:, enc["input_ids"].size(1) :]


def eos_cut_off(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0):
    """Ids of each completion, its eos included."""
    enc = _encode(tokenizer, prompts)
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    special = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    return [[t for t in row if t not in special] for row in seq[:, enc["input_ids"].size(1) :].tolist()]


def eos_left_in(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0):
    """Ids of each completion with the eos removed."""
    enc = _encode(tokenizer, prompts)
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    return [[t for t in row if t != tokenizer.pad_token_id] for row in seq[:, enc["input_ids"].size(1) :].tolist()]


def mask_not_passed(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0):
    enc = _encode(tokenizer, prompts)
    seq = model.generate(
        enc["input_ids"], attention_mask=torch.ones_like(enc["input_ids"]), max_new_tokens=max_new_tokens,
        do_sample=True, temperature=temperature, top_k=0,
    )
    return seq[:, enc["input_ids"].size(1) :]


def padded_on_the_right(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0):
    tokenizer.padding_side = "right"
    enc = tokenizer(prompts, return_tensors="pt", padding=True)
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    return seq[:, enc["input_ids"].size(1) :]


@torch.no_grad()
def loop_without_mask(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0):
    enc = _encode(tokenizer, prompts)
    ids = enc["input_ids"]
    done = torch.zeros(len(ids), 1, dtype=torch.bool)
    for _ in range(max_new_tokens):
        nxt = torch.multinomial((model(ids).logits[:, -1] / temperature).softmax(-1), 1)
        nxt = nxt.masked_fill(done, tokenizer.pad_token_id)
        ids = torch.cat([ids, nxt], 1)
        done |= nxt == tokenizer.eos_token_id
    return ids[:, enc["input_ids"].size(1) :]


def cut_at_real_length(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0):
    """Completion ids, without the prompt."""
    enc = _encode(tokenizer, prompts)
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    return [row[n:].tolist() for row, n in zip(seq, enc["attention_mask"].sum(1))]


def first_token_lost(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0):
    enc = _encode(tokenizer, prompts)
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    return seq[:, enc["input_ids"].size(1) + 1 :]


def last_prompt_token_kept(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0):
    enc = _encode(tokenizer, prompts)
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    return seq[:, enc["input_ids"].size(1) - 1 :]


def prompt_echoed(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0):
    """Only the generated tokens, eos included."""
    enc = _encode(tokenizer, prompts)
    return model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)


def text_with_prompt(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0):
    """The completions as texts, without their prompts."""
    enc = _encode(tokenizer, prompts)
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    return tokenizer.batch_decode(seq, skip_special_tokens=True)


def prompt_counted(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0):
    enc = _encode(tokenizer, prompts)
    seq = model.generate(**enc, max_length=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    return seq[:, enc["input_ids"].size(1) :]


@torch.no_grad()
def one_token_short(model, prompt_ids, max_new_tokens, temperature=1.0, eos_id=1):
    """New ids of one prompt."""
    ids = prompt_ids.tolist()
    start = len(ids)
    for _ in range(1, max_new_tokens):
        logits = model(torch.tensor([ids])).logits[0, -1] / temperature
        ids.append(int(torch.multinomial(logits.softmax(0), 1)))
        if ids[-1] == eos_id:
            break
    return ids[start:]


def samples_tiled(model, tokenizer, prompts, num_generations=4, max_new_tokens=16, temperature=1.0):
    """num_generations completions a prompt, those of a prompt next to each other."""
    enc = _encode(tokenizer, prompts)
    enc = {k: v.repeat(num_generations, 1) for k, v in enc.items()}
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    return seq[:, enc["input_ids"].size(1) :]


def sorted_and_left_so(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0):
    order = sorted(prompts, key=len)
    enc = _encode(tokenizer, order)
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    return tokenizer.batch_decode(seq[:, enc["input_ids"].size(1) :], skip_special_tokens=True)


@torch.no_grad()
def cache_fed_twice(model, prompt_ids, max_new_tokens, temperature=1.0, eos_id=1):
    ids, past, new = prompt_ids[None], None, []
    for _ in range(max_new_tokens):
        out = model(ids, past_key_values=past, use_cache=True)
        past = out.past_key_values
        tok = torch.multinomial((out.logits[:, -1] / temperature).softmax(-1), 1)
        ids = torch.cat([ids, tok], 1)
        new.append(tok.item())
        if new[-1] == eos_id:
            break
    return new


@torch.no_grad()
def logits_of_first_position(model, input_ids, max_new_tokens, temperature=1.0):
    ids = input_ids
    for _ in range(max_new_tokens):
        probs = (model(ids).logits[:, -2] / temperature).softmax(-1)
        ids = torch.cat([ids, torch.multinomial(probs, 1)], 1)
    return ids[:, input_ids.size(1) :]


def temperature_not_passed(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0):
    enc = _encode(tokenizer, prompts)
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, top_k=0)
    return seq[:, enc["input_ids"].size(1) :]


@torch.no_grad()
def temperature_inverted(model, input_ids, max_new_tokens, temperature=1.0):
    ids = input_ids
    for _ in range(max_new_tokens):
        probs = (model(ids).logits[:, -1] * temperature).softmax(-1)
        ids = torch.cat([ids, torch.multinomial(probs, 1)], 1)
    return ids[:, input_ids.size(1) :]


def temperature_twice(logits, temperature=1.0):
    logits = logits / temperature
    return torch.multinomial(F.softmax(logits / temperature, -1), 1)


def do_sample_forgotten(model, tokenizer, prompts, num_generations=4, max_new_tokens=16, temperature=1.0):
    enc = _encode(tokenizer, prompts)
    enc = {k: v.repeat_interleave(num_generations, 0) for k, v in enc.items()}
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, temperature=temperature)
    return seq[:, enc["input_ids"].size(1) :]


def softmax_first(logits, temperature=1.0):
    """Sampling of one token."""
    probs = torch.softmax(logits, -1) ** temperature
    return torch.multinomial(probs / probs.sum(-1, keepdim=True), 1)


def top_p_not_passed(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0, top_p=1.0):
    enc = _encode(tokenizer, prompts)
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    return seq[:, enc["input_ids"].size(1) :]


def top_k_off_by_one(logits, temperature=1.0, top_k=50):
    logits = logits / temperature
    kth = logits.sort(-1, descending=True).values[:, top_k]
    return torch.multinomial(logits.masked_fill(logits < kth[:, None], -torch.inf).softmax(-1), 1)


def nucleus_without_crossing(logits, temperature=1.0, top_p=0.9):
    probs = (logits / temperature).softmax(-1)
    srt, idx = probs.sort(-1, descending=True)
    keep = srt.cumsum(-1) <= top_p
    keep[:, 0] = True
    srt = srt * keep
    return idx.gather(1, torch.multinomial(srt, 1))


def nucleus_ascending(logits, temperature=1.0, top_p=0.9):
    probs = (logits / temperature).softmax(-1)
    srt, idx = probs.sort(-1)
    keep = srt.cumsum(-1) - srt < top_p
    return idx.gather(1, torch.multinomial(srt * keep, 1))


def sampler_top_k_complement(logits, temperature=1.0, top_k=50):
    logits = logits / temperature
    drop = torch.topk(logits, top_k).indices
    return torch.multinomial(logits.scatter(1, drop, -torch.inf).softmax(-1), 1)


def one_sample_repeated(model, tokenizer, prompts, num_generations=4, max_new_tokens=16, temperature=1.0):
    """num_generations completions for each prompt."""
    enc = _encode(tokenizer, prompts)
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    return seq[:, enc["input_ids"].size(1) :].repeat_interleave(num_generations, 0)


@torch.no_grad()
def same_stream_for_each_sample(model, prompt_ids, n, max_new_tokens=8, temperature=1.0, seed=0):
    out = []
    for row in prompt_ids:
        for _ in range(n):
            g = torch.Generator().manual_seed(seed)
            ids = row[None]
            for _ in range(max_new_tokens):
                p = (model(ids).logits[:, -1] / temperature).softmax(-1)
                ids = torch.cat([ids, torch.multinomial(p, 1, generator=g)], 1)
            out.append(ids[0, len(row) :])
    return torch.stack(out)


@torch.no_grad()
def stream_per_group_restarts(model, prompt_ids, group_size, max_new_tokens=8, temperature=1.0, base_seed=0):
    """Every sample has a random stream of its own."""
    out = []
    for row in prompt_ids:
        for j in range(group_size):
            g = torch.Generator().manual_seed(base_seed + j)
            ids = row[None]
            for _ in range(max_new_tokens):
                p = (model(ids).logits[:, -1] / temperature).softmax(-1)
                ids = torch.cat([ids, torch.multinomial(p, 1, generator=g)], 1)
            out.append(ids[0, len(row) :])
    return torch.stack(out)


@torch.no_grad()
def worker_streams_restart(model, prompt_ids, n, num_workers=2, max_new_tokens=8, temperature=1.0, seed=0):
    rows = prompt_ids.repeat_interleave(n, 0)
    out = []
    for ids in rows.chunk(num_workers):
        start = ids.size(1)
        g = torch.Generator().manual_seed(seed)
        for _ in range(max_new_tokens):
            p = (model(ids).logits[:, -1] / temperature).softmax(-1)
            ids = torch.cat([ids, torch.multinomial(p, 1, generator=g)], 1)
        out.append(ids[:, start:])
    return torch.cat(out)


def seeded_in_every_call(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0):
    """Reproducible rollouts."""
    torch.manual_seed(42)
    enc = _encode(tokenizer, prompts)
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    return seq[:, enc["input_ids"].size(1) :]


def seed_never_used(model, tokenizer, prompts, seed, max_new_tokens=16, temperature=1.0):
    """The same samples for one seed."""
    enc = _encode(tokenizer, prompts)
    generator = torch.Generator().manual_seed(seed)
    del generator
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    return seq[:, enc["input_ids"].size(1) :]


@torch.no_grad()
def seed_overwritten(model, prompt_ids, seed=0, max_new_tokens=8, temperature=1.0):
    torch.manual_seed(seed)
    torch.manual_seed(0)
    ids = prompt_ids
    for _ in range(max_new_tokens):
        p = (model(ids).logits[:, -1] / temperature).softmax(-1)
        ids = torch.cat([ids, torch.multinomial(p, 1)], 1)
    return ids[:, prompt_ids.size(1) :]


@torch.no_grad()
def workers_matter(model, prompt_ids, n, num_workers=2, max_new_tokens=8, temperature=1.0, seed=0):
    """Samples do not depend on num_workers."""
    rows = prompt_ids.repeat_interleave(n, 0)
    out = []
    for w, ids in enumerate(rows.chunk(num_workers)):
        start = ids.size(1)
        g = torch.Generator().manual_seed(seed + 1000 * w)
        for _ in range(max_new_tokens):
            p = (model(ids).logits[:, -1] / temperature).softmax(-1)
            ids = torch.cat([ids, torch.multinomial(p, 1, generator=g)], 1)
        out.append(ids[:, start:])
    return torch.cat(out)


def _scored(model, ids, max_new_tokens, temperature, pick):
    tokens, scores = [], []
    with torch.no_grad():
        for _ in range(max_new_tokens):
            logits = model(ids).logits[:, -1]
            lp = (logits / temperature).log_softmax(-1)
            tok = torch.multinomial(lp.exp(), 1)
            scores.append(pick(lp, logits, tok))
            tokens.append(tok)
            ids = torch.cat([ids, tok], 1)
    return torch.cat(tokens, 1), torch.cat(scores, 1)


def logps_of_the_next(model, input_ids, max_new_tokens=8, temperature=1.0):
    """Sampled ids and their log-probs."""
    ids, lps = _scored(model, input_ids, max_new_tokens, temperature, lambda lp, raw, tok: lp.gather(1, tok))
    return {"ids": ids, "logprobs": lps.roll(-1, 1)}


def logps_of_the_best(model, input_ids, max_new_tokens=8, temperature=1.0):
    ids, lps = _scored(model, input_ids, max_new_tokens, temperature, lambda lp, raw, tok: lp.max(1, keepdim=True).values)
    return {"ids": ids, "logprobs": lps}


def logps_raw(model, input_ids, max_new_tokens=8, temperature=1.0):
    """Sampled ids and their log-probs under the distribution that they were sampled from."""
    ids, lps = _scored(
        model, input_ids, max_new_tokens, temperature, lambda lp, raw, tok: raw.log_softmax(-1).gather(1, tok)
    )
    return ids, lps


def probabilities(model, input_ids, max_new_tokens=8, temperature=1.0):
    ids, lps = _scored(model, input_ids, max_new_tokens, temperature, lambda lp, raw, tok: lp.exp().gather(1, tok))
    return {"ids": ids, "logprobs": lps}


def train_switched_on(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0):
    enc = _encode(tokenizer, prompts)
    model.eval()
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    model.train()
    return seq[:, enc["input_ids"].size(1) :]


def eval_after_generate(model, tokenizer, prompts, max_new_tokens=16, temperature=1.0):
    """Samples in eval mode."""
    enc = _encode(tokenizer, prompts)
    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=temperature, top_k=0)
    model.eval()
    return seq[:, enc["input_ids"].size(1) :]


def graph_kept(model, input_ids, max_new_tokens=8, temperature=1.0):
    """Sampled ids and their log-probs, detached: they are the old log-probs of the ratio."""
    ids, lps = input_ids, []
    for _ in range(max_new_tokens):
        lp = (model(ids).logits[:, -1] / temperature).log_softmax(-1)
        tok = torch.multinomial(lp.exp(), 1)
        lps.append(lp.gather(1, tok))
        ids = torch.cat([ids, tok], 1)
    return ids[:, input_ids.size(1) :], torch.cat(lps, 1)
