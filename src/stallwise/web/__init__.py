"""The page of `stallwise ui`: a local server that reads a folder of runs and writes nothing.

- `server`: the socket, uvicorn, and what is imported while the browser starts. `browser`: opens the page.
- `app`: routes, who may ask, and what the page may load.
- `runs`: the folder, what may be opened in it, and the runs that are open.
- `_forms`: sliders and queries. `predict`: predictions and recommendations for them.
- `_documents`: JSON documents of the page. `_simulations`: simulated policies and jobs.
"""
